-- ARGV: name. Answers {text, left}, or {} where there is no live record.
return tell({}, read(redis.call('HGET', KEYS[1], ARGV[1])))

-- ARGV: name, revision, ttl in microseconds. Answers {1} once extended, {0, text, left} if it is not that record.
local name, revision, ttl = unpack(ARGV)
local found = read(redis.call('HGET', KEYS[1], name))
if not found or found.revision ~= revision then
  return tell({0}, found)
end
local value = string.sub(found.text, found.start)
redis.call('HSET', KEYS[1], name, table.concat({revision, found.born, ttl, whole(now + ttl), value}, ' '))
return {1}

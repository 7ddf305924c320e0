-- KEYS: what is to be replaced. ARGV: what was read there, what to write. Answers 1, or 0 if it is something else now.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
redis.call('SET', KEYS[1], ARGV[2])
return 1

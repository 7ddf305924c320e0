-- ARGV: revision. Raises the counter to it, and never lowers it. Answers the revision that was reached before: whatever
-- is drawn next is larger.
local least = tonumber(ARGV[1])
local counter = redis.call('HGET', KEYS[1], '') or '0'
if not string.match(counter, '^%d+$') then
  error('LEASEHOLD-DAMAGED')
end
if tonumber(counter) < least then
  -- The clock may be ahead of it already, and be set back.
  redis.call('HSET', KEYS[1], '', whole(least))
  redis.call('ZADD', KEYS[2], 0, '')
end
return math.max(tonumber(counter), now - 1)

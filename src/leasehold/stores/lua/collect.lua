-- ARGV: the name to begin after, as ZRANGEBYLEX takes it, most names to look at, most to drop.
-- Answers {names looked at, the last of them, dropped}. The counter stays where it is.
local names = redis.call('ZRANGEBYLEX', KEYS[2], ARGV[1], '+', 'LIMIT', 0, ARGV[2])
return {#names, names[#names] or '', drop_ended(names, tonumber(ARGV[3]))}

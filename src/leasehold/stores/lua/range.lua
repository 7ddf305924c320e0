-- ARGV: first and last name as ZRANGEBYLEX takes them, most names to look at.
-- Answers {names looked at, the last of them, then name, text, left of each that lives}.
local names = redis.call('ZRANGEBYLEX', KEYS[2], ARGV[1], ARGV[2], 'LIMIT', 0, ARGV[3])
local answer = {#names, names[#names] or ''}
for _, name in ipairs(names) do
  local found = read(redis.call('HGET', KEYS[1], name))
  if found then
    answer[#answer + 1] = name
    tell(answer, found)
  end
end
return answer

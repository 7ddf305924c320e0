-- ARGV: most records to answer, then first and last name of each range as ZRANGEBYLEX takes them; none overlap.
-- Answers name, text, left of each that lives; of one more than the most where there are more.
local SOME = 500
local most = tonumber(ARGV[1])
local answer = {}
local told = 0
for place = 2, #ARGV, 2 do
  local first = ARGV[place]
  repeat
    local names = redis.call('ZRANGEBYLEX', KEYS[2], first, ARGV[place + 1], 'LIMIT', 0, SOME)
    local texts = #names > 0 and redis.call('HMGET', KEYS[1], unpack(names)) or {}
    for nth, name in ipairs(names) do
      local found = read(texts[nth])
      if found then
        answer[#answer + 1] = name
        tell(answer, found)
        told = told + 1
        if told > most then
          return answer
        end
      end
    end
    first = '(' .. (names[#names] or '')
  until #names < SOME
end
return answer

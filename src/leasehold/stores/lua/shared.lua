-- What every script begins with. One bucket is two keys:
--   KEYS[1] records  hash   name -> "REVISION BORN TTL END VALUE", ttl and end in microseconds, "-" for a lasting one;
--                           the field "" is the counter, the last revision given out
--   KEYS[2] names    zset   every name with score 0, so that a family is one lexical range
-- A name is FAMILY NUL MEMBER. An end is compared with this server's clock here and nowhere else.

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

-- Lua writes large numbers in short, and wrong.
local function whole(number)
  return string.format('%.0f', number)
end

-- The live record that a text says, with the microseconds it has left (false if lasting).
local function read(text)
  if not text then
    return nil
  end
  local revision, born, ttl, ends, start = string.match(text, '^(%d+) (%d+) ([%d-]+) ([%d-]+) ()')
  if not start then
    error('LEASEHOLD-DAMAGED')
  end
  local left = ends ~= '-' and ends - now
  if left and left <= 0 then
    return nil
  end
  return {text = text, revision = revision, born = born, ttl = ttl, ends = ends, left = left, start = start}
end

-- A record as it is told: its text and what it has left; nothing where there is none.
local function tell(answer, found)
  if found then
    answer[#answer + 1] = found.text
    answer[#answer + 1] = found.left
  end
  return answer
end

-- Drop those of some names whose record has ended. Not one that cannot be read: it may be a lease.
local function drop_ended(names, limit)
  local dropped = 0
  local texts = #names > 0 and redis.call('HMGET', KEYS[1], unpack(names)) or {}
  for place, name in ipairs(names) do
    local known, found = pcall(read, texts[place])
    if dropped < limit and name ~= '' and known and not found then
      redis.call('HDEL', KEYS[1], name)
      redis.call('ZREM', KEYS[2], name)
      dropped = dropped + 1
    end
  end
  return dropped
end

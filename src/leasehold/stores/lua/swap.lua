-- ARGV: name, expected revision ("" for none), ttl in microseconds or "-" or "keep", how the names of heirs begin and a
-- name that goes along ("" for none), value (none deletes). What is deleted is followed by the first born of its heirs,
-- of which the watchers of both names are told.
-- Answers {1, revision, born, ttl, left} once written, {1} once deleted, {0, text, left} if it found something else.
local name, expect, ttl, heirs, other, value = unpack(ARGV)

-- The live record that was born first of those whose names begin so.
local function first_born(start)
  local first
  local names = redis.call('ZRANGEBYLEX', KEYS[2], '[' .. start, '(' .. start .. '\255')
  -- Some at a time: Lua cannot pass very many arguments.
  for place = 1, #names, 1000 do
    for _, text in ipairs(redis.call('HMGET', KEYS[1], unpack(names, place, math.min(place + 999, #names)))) do
      local one = read(text)
      if one and (not first or tonumber(one.born) < tonumber(first.born)) then
        first = one
      end
    end
  end
  return first
end

local text, counter = unpack(redis.call('HMGET', KEYS[1], name, ''))
local found = read(text)
if (found and found.revision or '') ~= expect then
  return tell({0}, found)
end
local heir
if found and heirs ~= '' then
  if other ~= '' then
    redis.call('HDEL', KEYS[1], other)
    redis.call('ZREM', KEYS[2], other)
  end
  heir = first_born(heirs)
end
if heir then
  value, ttl = string.sub(heir.text, heir.start), heir.ttl
end
if not value then
  if found then
    -- The record first: whatever stops a script half way leaves a name without a record, which is none.
    redis.call('HDEL', KEYS[1], name)
    redis.call('ZREM', KEYS[2], name)
    redis.call('PUBLISH', 'leasehold:' .. name, '')
    if other ~= '' then
      redis.call('PUBLISH', 'leasehold:' .. other, '')
    end
  end
  return {1}
end

local revision = now
if not counter then
  -- An empty key is no key: this name stays, so that a moving Cluster slot has both keys or none.
  redis.call('ZADD', KEYS[2], 0, '')
elseif not string.match(counter, '^%d+$') then
  error('LEASEHOLD-DAMAGED')
elseif counter + 1 > now then
  -- The clock stepped back, or two writes fell into one microsecond.
  revision = counter + 1
end
if not text then
  redis.call('ZADD', KEYS[2], 0, name)
end

local ends, left = '-', tonumber(ttl)
if left then
  ends = whole(now + left)
elseif ttl == 'keep' and found then
  ttl, ends, left = found.ttl, found.ends, found.left
else
  ttl = '-'
end
local number = whole(revision)
local born = found and not heir and found.born or number
local written = table.concat({number, born, ttl, ends, value}, ' ')
redis.call('HSET', KEYS[1], '', number, name, written)
if heir then
  local words = #name .. ' ' .. name .. written
  redis.call('PUBLISH', 'leasehold:' .. name, words)
  if other ~= '' then
    redis.call('PUBLISH', 'leasehold:' .. other, words)
  end
  return {1}
end
redis.call('PUBLISH', 'leasehold:' .. name, '')

-- Now and then look at some names, two for each new one: what nobody released never outnumbers what lives.
if not found and revision % 16 == 0 then
  local first = math.floor(revision / 16) % redis.call('ZCARD', KEYS[2])
  drop_ended(redis.call('ZRANGE', KEYS[2], first, first + 31), 32)
end
return {1, revision, tonumber(born), tonumber(ttl) or false, left or false}

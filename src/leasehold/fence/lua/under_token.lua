-- KEYS: what is fenced, its mark. ARGV: token, verb, then the words of a command but for the key, which comes second.
-- The verb is "open" (no command), "read", "write", "call" (whatever the command is) or "share" (it must only read).
-- Answers {"stale", mark}, {"unfit", why} or {"done", what the command said}.

-- A number here has 53 bits: those of 63 are compared in two halves.
local function halves(digits)
  if not string.find(digits, '^%d+$') or #digits > 19 then
    return nil
  end
  local all = string.rep('0', 19 - #digits) .. digits
  return tonumber(string.sub(all, 1, 10)), tonumber(string.sub(all, 11))
end

local token, verb = ARGV[1], ARGV[2]
local mark = redis.call('GET', KEYS[2]) or '0'
local seen, seen_low = halves(mark)
if not seen then
  return {'damaged', ''}
end
local shown, shown_low = halves(token)
if shown < seen or (shown == seen and shown_low < seen_low) then
  return {'stale', mark}
end

local raises = verb == 'open' or verb == 'write'
if verb == 'call' or verb == 'share' then
  local known = redis.call('COMMAND', 'INFO', ARGV[3])[1]
  if not known then
    return {'unfit', 'is unknown to this server'}
  end
  local flags = {}
  for _, flag in ipairs(known[3]) do
    flags[flag.ok or flag] = true
  end
  if known[4] ~= 1 or known[5] ~= 1 or flags.movablekeys then
    return {'unfit', 'must have one key, directly after its name'}
  end
  if verb == 'share' and not flags.readonly then
    return {'writes', ''}
  end
  raises = not flags.readonly
end

-- The mark first: should the command fail, a holder has registered, which it may.
if raises and mark ~= token then
  redis.call('SET', KEYS[2], token)
end
if #ARGV < 3 then
  return {'done', false}
end
local said = redis.pcall(ARGV[3], KEYS[1], unpack(ARGV, 4))
if type(said) == 'table' and said.err then
  return said
end
return {'done', said}

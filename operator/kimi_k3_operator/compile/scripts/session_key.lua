-- Envoy filter: names the session of a request in one header. By it the endpoint picker keeps a session on the server
-- that holds its cache.
--
-- Of these the first that is there: a header of the client, `prompt_cache_key`, `user`, the messages up to and with the
-- first one of the user, the prompt. It is sent on as a hash of fixed length, so nothing that a client writes gets into
-- a header or a log. Whatever is odd (no JSON, no end, too much work) gives no key; the request goes on in any case.
-- docs/design/0015-session-key.md has the why.
--
-- Globals, set by what is put in front of this file: SESSION_HEADER (the client's header), KEY_HEADER (ours),
-- MAX_BODY_BYTES (a longer body is not looked into).

local bit = require("bit")
local byte, char, find, sub = string.byte, string.char, string.find, string.sub
local band, bor, bxor, tobit = bit.band, bit.bor, bit.bxor, bit.tobit
local lshift, rol, rshift = bit.lshift, bit.rol, bit.rshift

-- After the configured header, those that coding agents send unasked: Claude Code, OpenCode (two), Codex (two).
local CLIENT_HEADERS = {
  SESSION_HEADER, "x-claude-code-session-id", "x-session-affinity", "x-opencode-session", "session-id", "session_id",
}
-- Stops (strings, quotes within strings, brackets, escapes) until a body is given up: about 0.1 s of a worker's time.
local MAX_STOPS = 3000000
-- The longest key that can be one of ours: `prompt_cache_key` with every letter as a \u escape.
local MAX_KEY_BYTES = 96
-- The longest name (`user`, `prompt_cache_key`, a role) that is looked at.
local MAX_NAME_BYTES = 4096
-- Of a longer text the first and the last half of this many bytes are hashed, and the length.
local MAX_HASHED_BYTES = 262144
local COLLECT_BYTES = 1048576

local stops_left = 0

local function stop_counted()
  stops_left = stops_left - 1
  if stops_left < 0 then error("too much work", 0) end
end

-- Position of the quote that closes the string which `start` opens.
local function string_end(text, start)
  local at = start
  while true do
    at = find(text, '"', at + 1, true)
    if not at then error("a string without end", 0) end
    stop_counted()
    local back = at - 1
    while byte(text, back) == 92 do back = back - 1 end
    if (at - back) % 2 == 1 then return at end
  end
end

-- Position and value of the first byte from `at` that is no white space.
local function skip_space(text, at)
  local c = byte(text, at)
  while c == 32 or c == 10 or c == 13 or c == 9 do
    at = at + 1
    c = byte(text, at)
  end
  return at, c
end

-- Position after the bracket that closes `depth` open ones.
local function close(text, at, depth)
  while true do
    local c = byte(text, at)
    if c == 34 then
      at = string_end(text, at)
    elseif c == 123 or c == 91 then
      depth = depth + 1
      stop_counted()
    elseif c == 125 or c == 93 then
      depth = depth - 1
      if depth == 0 then return at + 1 end
    elseif not c then
      error("a bracket without end", 0)
    end
    at = at + 1
  end
end

-- Position after the value that begins at `at`.
local function skip_value(text, at)
  local c = byte(text, at)
  if c == 34 then return string_end(text, at) + 1 end
  if c == 123 or c == 91 then return close(text, at + 1, 1) end
  local start = at
  while c and c ~= 44 and c ~= 125 and c ~= 93 and c ~= 32 and c ~= 10 and c ~= 13 and c ~= 9 do
    at = at + 1
    c = byte(text, at)
  end
  if at == start then error("no value", 0) end
  return at
end

local function utf8(code)
  if code < 0x80 then return char(code) end
  if code < 0x800 then return char(0xC0 + rshift(code, 6), 0x80 + band(code, 0x3F)) end
  if code < 0x10000 then
    return char(0xE0 + rshift(code, 12), 0x80 + band(rshift(code, 6), 0x3F), 0x80 + band(code, 0x3F))
  end
  return char(
    0xF0 + rshift(code, 18), 0x80 + band(rshift(code, 12), 0x3F), 0x80 + band(rshift(code, 6), 0x3F),
    0x80 + band(code, 0x3F)
  )
end

local ESCAPES = {
  ['"'] = '"', ["\\"] = "\\", ["/"] = "/", b = "\b", f = "\f", n = "\n", r = "\r", t = "\t",
}

-- The code unit of the \u escape at `at`, or nil.
local function code_unit(text, at)
  if sub(text, at, at + 1) ~= "\\u" then return nil end
  local digits = sub(text, at + 2, at + 5)
  return find(digits, "^%x%x%x%x$") and tonumber(digits, 16) or nil
end

-- The bytes that a string's inside stands for.
local function decode(text)
  local at = find(text, "\\", 1, true)
  if not at then return text end
  local parts, from = {}, 1
  while at do
    stop_counted()
    parts[#parts + 1] = sub(text, from, at - 1)
    local plain = ESCAPES[sub(text, at + 1, at + 1)]
    if plain then
      parts[#parts + 1] = plain
      from = at + 2
    else
      local code = code_unit(text, at)
      if not code then error("an unknown escape", 0) end
      from = at + 6
      local low = code >= 0xD800 and code < 0xDC00 and code_unit(text, from)
      if low and low >= 0xDC00 and low < 0xE000 then
        code = 0x10000 + (code - 0xD800) * 0x400 + (low - 0xDC00)
        from = from + 6
      end
      parts[#parts + 1] = utf8(code)
    end
    at = find(text, "\\", from, true)
  end
  parts[#parts + 1] = sub(text, from)
  return table.concat(parts)
end

-- The next key of an object and the position of its value; no key at the object's end.
local function member(text, at)
  local c
  at, c = skip_space(text, at)
  if c == 125 then return nil, at end
  if c ~= 34 then error("no key", 0) end
  local stop = string_end(text, at)
  local key = stop - at - 1 <= MAX_KEY_BYTES and decode(sub(text, at + 1, stop - 1)) or ""
  at, c = skip_space(text, stop + 1)
  if c ~= 58 then error("no colon", 0) end
  return key, (skip_space(text, at + 1))
end

-- Position of the next element, or of the closing bracket, after a value; whether it is an element.
local function following(text, at)
  local c
  at, c = skip_space(text, at)
  if c == 44 then return at + 1, true end
  if c == 125 or c == 93 then return at, false end
  error("no comma", 0)
end

-- The string that begins at `at`, or nil where another kind of value does; and the position after the value.
local function string_value(text, at)
  if byte(text, at) ~= 34 then return nil, skip_value(text, at) end
  local stop = string_end(text, at)
  if stop - at - 1 > MAX_NAME_BYTES then error("a name too long", 0) end
  return decode(sub(text, at + 1, stop - 1)), stop + 1
end

-- Position of the closing brace of the object that `at` opens, and its `role`.
local function message(text, at)
  local role, more = nil, true
  at = at + 1
  while more do
    local key, value = member(text, at)
    if not key then return value, role end
    if key == "role" then
      role, at = string_value(text, value)
    else
      at = skip_value(text, value)
    end
    at, more = following(text, at)
  end
  return at, role
end

-- Where the first message of the user ends in the list that `at` opens, or nil; and the position after the list.
local function first_user_message(text, at)
  local c
  at, c = skip_space(text, at + 1)
  if c == 93 then return nil, at + 1 end
  local more = true
  while more do
    at, c = skip_space(text, at)
    if c == 123 then
      local stop, role = message(text, at)
      if role == "user" then return stop, close(text, stop + 1, 1) end
      at = stop + 1
    else
      at = skip_value(text, at)
    end
    at, more = following(text, at)
  end
  return nil, at + 1
end

local function times(a, b)
  return tobit(band(a, 0xFFFF) * b + lshift(band(rshift(a, 16) * b, 0xFFFF), 16))
end

local function finish(h, length)
  h = bxor(h, length)
  h = times(bxor(h, rshift(h, 16)), 0x85EBCA6B)
  h = times(bxor(h, rshift(h, 13)), 0xC2B2AE35)
  return bit.tohex(bxor(h, rshift(h, 16)))
end

-- Both states after four bytes, or after the last one to three.
local function mixed(h1, h2, a, b, c, d)
  local word = bor(a, lshift(b or 0, 8), lshift(c or 0, 16), lshift(d or 0, 24))
  word = times(rol(times(word, 0xCC9E2D51), 15), 0x1B873593)
  return bxor(h1, word), bxor(h2, word)
end

local function hash_words(text, from, to, h1, h2)
  local at = from
  while at + 3 <= to do
    h1, h2 = mixed(h1, h2, byte(text, at, at + 3))
    h1, h2 = tobit(rol(h1, 13) * 5 + 0xE6546B64), tobit(rol(h2, 13) * 5 + 0xE6546B64)
    at = at + 4
  end
  return at, h1, h2
end

-- `kind` and two MurmurHash3 of 32 bits with different seeds. The hash tells sessions apart; it does not hide them.
local function key_of(kind, text, from, to)
  from, to = from or 1, to or #text
  local length, at, h1, h2 = to - from + 1, from, 0x4B33, 0x1D872B41
  if length > MAX_HASHED_BYTES then
    at, h1, h2 = hash_words(text, from, from + MAX_HASHED_BYTES / 2 - 1, h1, h2)
    at = to - MAX_HASHED_BYTES / 2 + 1
  end
  at, h1, h2 = hash_words(text, at, to, h1, h2)
  if at <= to then h1, h2 = mixed(h1, h2, byte(text, at, to)) end
  return kind .. "-" .. finish(h1, length) .. finish(h2, length)
end

-- The key that a JSON body names or implies, or nil. Raises an error for anything odd.
local function scan(text)
  local at, c = skip_space(text, 1)
  if c ~= 123 then return nil end
  local user, spans, more = nil, {}, true
  at = at + 1
  while more do
    local key, value = member(text, at)
    if not key then break end
    c = byte(text, value)
    if key == "prompt_cache_key" or key == "user" then
      local named
      named, at = string_value(text, value)
      if named and named ~= "" then
        if key == "prompt_cache_key" then return key_of("cache", named) end
        user = named
      end
    elseif (key == "messages" or key == "input") and c == 91 then
      local stop
      stop, at = first_user_message(text, value)
      spans[key] = stop and { value, stop }
    else
      at = skip_value(text, value)
      if (key == "prompt" and (c == 34 or c == 91)) or (key == "input" and c == 34) then
        spans[key] = at - value > 2 and { value, at - 1 }
      end
    end
    at, more = following(text, at)
  end
  if user then return key_of("user", user) end
  local span = spans.messages or spans.input or spans.prompt
  return span and key_of("text", text, span[1], span[2]) or nil
end

-- The session key of a JSON body, or nil. Never raises an error.
function session_key_of_body(text)
  stops_left = MAX_STOPS
  local well, found = pcall(scan, text)
  return well and found or nil
end

-- The session key that the client's headers name, or nil.
function session_key_of_headers(headers)
  for _, name in ipairs(CLIENT_HEADERS) do
    local value = headers:get(name)
    if value and value ~= "" then return key_of("client", value) end
  end
  return nil
end

local function readable(headers)
  if headers:get(":method") ~= "POST" or headers:get("content-encoding") then return false end
  local kind = headers:get("content-type")
  if kind and not find(kind, "json", 1, true) then return false end
  return (tonumber(headers:get("content-length") or "0") or 0) <= MAX_BODY_BYTES
end

function envoy_on_request(handle)
  local found = session_key_of_headers(handle:headers())
  if not found and readable(handle:headers()) then
    local body = handle:body() -- waits for all of it: a header must be set before the first byte goes on
    local length = body and body:length() or 0
    if length > 0 and length <= MAX_BODY_BYTES then
      found = session_key_of_body(body:getBytes(0, length))
      if length > COLLECT_BYTES then collectgarbage() end -- nothing else is in this heap, so this is quick
    end
  end
  if found then handle:headers():replace(KEY_HEADER, found) end
end

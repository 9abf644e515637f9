-- Envoy filter: lets a request pass if it carries one of the API keys, else answers 401.
--
-- The keys are lines of a file from a Secret; empty lines and lines that begin with # are none. The file is read again
-- every few seconds, so a changed Secret takes effect without a restart. No file or no key in it: nobody passes.
-- The key goes no further than this filter. Globals, set by what is put in front of this file: API_KEYS_FILE.

local REREAD_SECONDS = 5

local keys, read_at = {}, nil

local function reread(handle)
  local now = os.time()
  if read_at and now - read_at < REREAD_SECONDS and now >= read_at then return end
  read_at = now
  local file = io.open(API_KEYS_FILE, "r")
  if not file then
    handle:logErr("the file of API keys cannot be read: " .. API_KEYS_FILE)
    return
  end
  local found = {}
  for line in file:lines() do
    local key = string.match(line, "^%s*(%S+)%s*$")
    if key and string.sub(key, 1, 1) ~= "#" then found[key] = true end
  end
  file:close()
  keys = found
end

-- The key a request carries, as OpenAI's clients send it or as Anthropic's do; or nil.
local function presented(headers)
  local value = headers:get("authorization")
  local scheme, token = string.match(value or "", "^%s*(%a+)%s+(%S+)%s*$")
  if scheme and string.lower(scheme) == "bearer" then return token end
  return headers:get("x-api-key")
end

function envoy_on_request(handle)
  reread(handle)
  local headers = handle:headers()
  local key = presented(headers)
  if key and keys[key] then -- strings are interned: one comparison of pointers, not of characters
    headers:remove("authorization")
    headers:remove("x-api-key")
    return
  end
  handle:respond({ [":status"] = "401" }, key and "Incorrect API key provided." or "No API key provided.")
end

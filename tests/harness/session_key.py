"""The session key in Python, written from its rules and not from the Lua; and the Lua scripts, run by LuaJIT.

The reference reads JSON with the standard library and finds the same positions in the text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import lupa.luajit21 as luajit

from kimi_k3_operator.compile.entrance import session_key_script

SESSION_HEADER = "x-session-id"
AGENT_HEADERS = ("x-claude-code-session-id", "x-session-affinity", "x-opencode-session", "session-id", "session_id")
MAX_NAME_BYTES = 4096
MAX_HASHED_BYTES = 256 << 10

_read = json.JSONDecoder().raw_decode
_MASK = 0xFFFFFFFF
_SPACE = " \n\r\t"


def reference(headers: Mapping[str, str], body: bytes | None) -> str | None:
    """The key of a request whose body is valid JSON; None where it has none."""
    for name in (SESSION_HEADER, *AGENT_HEADERS):
        if headers.get(name):
            return key("client", headers[name].encode())
    return of_body(body.decode()) if body else None


def of_body(text: str) -> str | None:
    if not text.lstrip(_SPACE).startswith("{"):
        return None
    user, spans = None, dict[str, str | None]()
    for name, start, end, value in _members(text, len(text) - len(text.lstrip(_SPACE))):
        raw = text[start:end]
        if name in ("prompt_cache_key", "user") and isinstance(value, str):
            if len(raw.encode()) - 2 > MAX_NAME_BYTES:
                return None
            if value and name == "prompt_cache_key":
                return key("cache", value.encode("utf-8", "surrogatepass"))
            user = value or user
        elif name in ("messages", "input") and isinstance(value, list):
            spans[name] = _through_first_user(text, start)
        elif (name == "prompt" and isinstance(value, list | str)) or (name == "input" and isinstance(value, str)):
            spans[name] = raw if len(raw.encode()) > 2 else None
    if user:
        return key("user", user.encode("utf-8", "surrogatepass"))
    found = spans.get("messages") or spans.get("input") or spans.get("prompt")
    return key("text", found.encode()) if found else None


def key(kind: str, text: bytes) -> str:
    hashed = text
    if len(text) > MAX_HASHED_BYTES:
        hashed = text[: MAX_HASHED_BYTES // 2] + text[-MAX_HASHED_BYTES // 2 :]
    return f"{kind}-{murmur3(hashed, 0x4B33, len(text)):08x}{murmur3(hashed, 0x1D872B41, len(text)):08x}"


def murmur3(text: bytes, seed: int, length: int) -> int:
    """MurmurHash3 (x86, 32 bits), as Austin Appleby published it."""
    h = seed
    whole = len(text) & ~3
    for at in range(0, whole, 4):
        h ^= _scrambled(int.from_bytes(text[at : at + 4], "little"))
        h = ((h << 13 | h >> 19) * 5 + 0xE6546B64) & _MASK
    if text[whole:]:
        h ^= _scrambled(int.from_bytes(text[whole:], "little"))
    h ^= length
    h = (h ^ h >> 16) * 0x85EBCA6B & _MASK
    h = (h ^ h >> 13) * 0xC2B2AE35 & _MASK
    return h ^ h >> 16


def _scrambled(word: int) -> int:
    word = word * 0xCC9E2D51 & _MASK
    return (word << 15 | word >> 17) * 0x1B873593 & _MASK


def _members(text: str, at: int) -> Iterator[tuple[str, int, int, Any]]:
    """Key, start and end of the value, value: of the object that begins at `at`."""
    at = _next(text, at + 1)
    while text[at] != "}":
        name, at = _read(text, at)
        start = _next(text, _next(text, at) + 1)
        value, end = _read(text, start)
        yield name, start, end, value
        at = _next(text, end)
        at = _next(text, at + 1) if text[at] == "," else at


def _through_first_user(text: str, start: int) -> str | None:
    at = _next(text, start + 1)
    while text[at] != "]":
        value, end = _read(text, at)
        if isinstance(value, dict) and value.get("role") == "user":
            return text[start:end]
        at = _next(text, end)
        at = _next(text, at + 1) if text[at] == "," else at
    return None


def _next(text: str, at: int) -> int:
    while text[at] in _SPACE:
        at += 1
    return at


class LuaHandle:
    """What Envoy gives a script: headers, a body, and a way to answer. Times that the body was read are counted."""

    def __init__(self, runtime: Any, headers: Mapping[bytes, bytes], body: bytes | None = None) -> None:
        self.values = dict(headers)
        self.reads = 0
        self.copied = 0
        self.answer: tuple[dict[bytes, bytes], bytes] | None = None
        self.errors: list[bytes] = []
        table = runtime.table_from
        wrapped = {
            b"get": lambda _, name: self.values.get(name),
            b"replace": lambda _, name, value: self.values.__setitem__(name, value),
            b"remove": lambda _, name: self.values.pop(name, None) and None,
        }
        buffer = table({b"length": lambda _: len(body or b""), b"getBytes": self._bytes(body or b"")})
        self.lua = table(
            {
                b"headers": lambda _: table(wrapped),
                b"body": lambda _: self._read(buffer if body is not None else None),
                b"respond": self._respond,
                b"logErr": lambda _, message: self.errors.append(message),
            }
        )

    def _read(self, buffer: Any) -> Any:
        self.reads += 1
        return buffer

    def _bytes(self, body: bytes) -> Any:
        def copy(_: Any, start: int, length: int) -> bytes:
            self.copied += length
            return body[start : start + length]

        return copy

    def _respond(self, _: Any, headers: Any, body: bytes) -> None:
        self.answer = (dict(headers.items()), body)


class LuaFilter:
    """A script of the entrance in LuaJIT, which is what Envoy runs."""

    def __init__(self, source: str | None = None) -> None:
        self.runtime = luajit.LuaRuntime(encoding=None)
        self.runtime.execute((source or session_key_script(SESSION_HEADER)).encode())
        self.of_body = self.runtime.globals()[b"session_key_of_body"]

    def run(self, headers: Mapping[str, str], body: bytes | None = None) -> LuaHandle:
        given = {name.encode(): value.encode() for name, value in headers.items()}
        handle = LuaHandle(self.runtime, given, body)
        self.runtime.globals()[b"envoy_on_request"](handle.lua)
        return handle


def turns(first: Sequence[dict[str, Any]], count: int) -> Iterator[list[dict[str, Any]]]:
    """The messages of each turn of a conversation that begins with `first`."""
    messages = list(first)
    for turn in range(count):
        yield list(messages)
        messages += [{"role": "assistant", "content": f"a {turn}"}, {"role": "user", "content": f"q {turn}"}]

"""From messages to the bytes an engine computes, their tokens, and the names of their cache units.

Counting: one token for each 4 bytes of the rendered text (the last may be shorter), plus TEMPLATE_TOKENS for the start
of the answer, which Kimi K3's template ends a chat prompt with. Rules of the rendering that matter to caching: what
holds for the whole request (effort, tools, response format) comes first, so a change of it loses the prefix; a message
adds the same bytes whether the engine wrote it or the client sends it back.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

BYTES_PER_TOKEN = 4
TEMPLATE_TOKENS = 3
MEDIA_TOKENS = 256
"""An image or a video, whatever its size."""


def render_chat(messages: Sequence[Mapping[str, Any]], header: Mapping[str, Any]) -> bytes:
    """The prompt of a chat; `header` is what is set for the whole request."""
    parts = [f"<|open|>{name}<|sep|>{_plain(value)}<|close|>" for name, value in header.items() if value]
    parts += [render_message(message) for message in messages]
    return "".join(parts).encode("utf-8", "surrogatepass")


def render_message(message: Mapping[str, Any]) -> str:
    reasoning = message.get("reasoning") or message.get("reasoning_content") or ""
    extra = "".join(
        f"<|open|>{name}<|sep|>{_plain(message[name])}<|close|>"
        for name in ("tool_calls", "tools")
        if message.get(name)
    )
    return f"<|open|>{message.get('role')}<|sep|>{reasoning}<|sep|>{text_of(message.get('content'))}{extra}<|close|>"


def text_of(content: Any) -> str:
    """A string, or the parts of a message; media become a text of fixed length that is their own."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "".join(part.get("text", "") if part.get("type") == "text" else _media(part) for part in content)


def chat_tokens(rendered: bytes) -> int:
    return text_tokens(rendered) + TEMPLATE_TOKENS


def text_tokens(raw: bytes | str) -> int:
    return -(-len(raw if isinstance(raw, bytes) else raw.encode()) // BYTES_PER_TOKEN)


def token_ids(raw: bytes) -> list[int]:
    """One number for each 4 bytes."""
    return [int.from_bytes(raw[at : at + BYTES_PER_TOKEN], "big") for at in range(0, len(raw), BYTES_PER_TOKEN)]


def raw_of(ids: Sequence[int]) -> bytes:
    """Bytes that count as many tokens as there are ids."""
    return b"".join((one & 0xFFFFFFFF).to_bytes(BYTES_PER_TOKEN, "big") for one in ids)


def cache_units(raw: bytes, unit_tokens: int) -> list[int]:
    """A name for each full unit; equal only for equal text up to its end, and only within this process."""
    size = unit_tokens * BYTES_PER_TOKEN
    units: list[int] = []
    parent = 0
    for at in range(0, len(raw) - size + 1, size):
        parent = hash((parent, raw[at : at + size]))
        units.append(parent)
    return units


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, separators=(",", ":"))


def _media(part: Mapping[str, Any]) -> str:
    mark = hashlib.sha256(_plain(dict(part)).encode()).hexdigest()
    return f"<|media|>{mark}".ljust(MEDIA_TOKENS * BYTES_PER_TOKEN, ".")

"""Answers as JSON: in one piece, and as the frames of a stream."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.harness.engine.answers import END_TOKENS, Answer
from tests.harness.engine.prompt import BYTES_PER_TOKEN, text_tokens

Json = dict[str, Any]
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class Head:
    """What all frames of one answer share."""

    id: str
    created: int
    model: str
    chat: bool

    @classmethod
    def new(cls, model: str, *, chat: bool) -> Head:
        return cls(f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}", int(time.time()), model, chat)

    def frame(self, choices: list[Json], **more: Any) -> Json:
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
            **more,
        }


def usage(prompt_tokens: int, answer: Answer, cached: int | None) -> Json:
    """`cached` None leaves the details out."""
    found: Json = {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + answer.tokens,
        "completion_tokens": answer.tokens,
        "prompt_tokens_details": None if cached is None else {"cached_tokens": cached},
    }
    return found


def body(head: Head, answer: Answer, used: Json, transfer: Mapping[str, Any] | None) -> Json:
    """An answer in one piece."""
    choice: Json = {"index": 0, "logprobs": None, "finish_reason": answer.finish, "stop_reason": None}
    if head.chat:
        calls = [
            {"id": _call_id(), "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in answer.calls
        ]
        choice["message"] = {
            "role": "assistant",
            "content": answer.content if answer.content or not calls else None,
            "reasoning": answer.reasoning or None,
            "tool_calls": calls,
        }
    else:
        choice["text"] = answer.content
    found = head.frame([choice], usage=used, kv_transfer_params=dict(transfer) if transfer else None)
    return {**found, "object": "chat.completion"} if head.chat else found


def frames(head: Head, answer: Answer, *, interval: int) -> list[tuple[int, Json]]:
    """(tokens of the answer that have to be there, frame) for a stream, without usage and [DONE]."""
    found: list[tuple[int, Json]] = []
    done = 0
    if head.chat:
        found.append((1, _delta(head, {"role": "assistant", "content": ""})))
    for name, text in (("reasoning", answer.reasoning), ("content", answer.content)):
        for tokens, piece in _pieces(text, interval):
            done += tokens
            found.append((done, _delta(head, {name: piece}) if head.chat else _text(head, piece, None)))
    for index, call in enumerate(answer.calls):
        done += text_tokens(call.name)
        opening = {"id": _call_id(), "type": "function", "index": index}
        function = {"name": call.name, "arguments": ""}
        found.append((done, _delta(head, {"tool_calls": [{**opening, "function": function}]})))
        for tokens, piece in _pieces(call.arguments, interval):
            done += tokens
            found.append((done, _delta(head, {"tool_calls": [{"index": index, "function": {"arguments": piece}}]})))
    last = min(done + END_TOKENS, max(answer.tokens, 1))
    found.append((last, _delta(head, {}, answer.finish) if head.chat else _text(head, "", answer.finish)))
    return found


def event(frame: Json) -> bytes:
    return b"data: " + json.dumps(frame, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def _delta(head: Head, delta: Json, finish: str | None = None) -> Json:
    return head.frame([{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}])


def _text(head: Head, text: str, finish: str | None) -> Json:
    return head.frame([{"index": 0, "text": text, "logprobs": None, "finish_reason": finish}])


def _pieces(text: str, interval: int) -> list[tuple[int, str]]:
    """(tokens, text) of `interval` tokens each, cut between characters."""
    size = interval * BYTES_PER_TOKEN
    if text.isascii():
        parts = [text[at : at + size] for at in range(0, len(text), size)]
    else:
        parts = [text[at : at + interval] for at in range(0, len(text), interval)]
    total, before, found = text_tokens(text), 0, []
    for number, part in enumerate(parts, start=1):
        there = min(total, -(-total * number // len(parts)))
        found.append((there - before, part))
        before = there
    return found


def _call_id() -> str:
    return f"chatcmpl-tool-{uuid.uuid4().hex}"

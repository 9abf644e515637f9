"""What the fake model says: sums are right, everything else is the same text for the same question.

Marks in the last user message choose something else: `[[tokens N]]` for a text of N tokens, `[[call]]`,
`[[call NAME]]` or `[[call NAME {"a": 1}]]` for a tool call, `[[say TEXT]]` for that text.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.harness.engine.prompt import BYTES_PER_TOKEN, text_of, text_tokens

END_TOKENS = 1
"""The end of the answer is a token of its own and is counted, as in vLLM."""
SUM = re.compile(r"(-?\d+)\s*([+*x×-])\s*(-?\d+)")
LENGTH = re.compile(r"\[\[tokens (\d+)\]\]")
CALL = re.compile(r"\[\[call(?: ([\w-]+))?(?: (\{.*?\}))?\]\]", re.DOTALL)
SAY = re.compile(r"\[\[say (.*?)\]\]", re.DOTALL)
SENTENCE = "the model reads what was asked and says in plain words what it takes to be the case at this point"
WORDS = tuple(SENTENCE.split())
THOUGHTS = {"low": 1, "high": 2, "max": 4}
TAIL = 4096
"""Characters at the end of a question in which sums and marks are looked for."""


@dataclass(frozen=True)
class ToolCall:
    name: str
    arguments: str


@dataclass(frozen=True)
class Answer:
    """`tokens` counts reasoning, text, calls and the end; `finish` is the API's word for why it ended."""

    reasoning: str = ""
    content: str = ""
    calls: tuple[ToolCall, ...] = ()
    finish: str = "stop"
    tokens: int = 0


def answer_to(
    messages: Sequence[Mapping[str, Any]],
    *,
    effort: str | None,
    tools: Sequence[Mapping[str, Any]] = (),
    tool_choice: Any = "auto",
    response_format: Mapping[str, Any] | None = None,
) -> Answer:
    """The whole answer, before any limit; `effort` None is without thinking."""
    question = next((text_of(m.get("content")) for m in reversed(messages) if m.get("role") == "user"), "")
    asked = question[-TAIL:]
    reasoning = " ".join(["I read the question and work out its answer."] * THOUGHTS.get(effort or "", 0))
    call = _call(asked, tools, tool_choice)
    if call is not None:
        return Answer(reasoning=reasoning, calls=(call,))
    return Answer(reasoning=reasoning, content=_content(asked, response_format))


def complete(prompt: str) -> Answer:
    """The continuation of a plain prompt."""
    return Answer(content=_content(prompt[-TAIL:], None))


def limited(answer: Answer, limit: int, *, at_least: int = 0, stop: Sequence[str] = ()) -> Answer:
    """The answer cut at a stop word and at `limit` tokens, or drawn out to `at_least`; its tokens are counted here."""
    found = [at for word in stop if word and (at := answer.content.find(word)) >= 0]
    if found:
        answer = replace(answer, content=answer.content[: min(found)])
    length = count(answer)
    if length < at_least:
        answer = replace(answer, content=answer.content + _words(at_least - length, start=len(answer.content)))
        length = count(answer)
    if length <= limit:
        return replace(answer, tokens=length, finish="tool_calls" if answer.calls else "stop")
    reasoning = answer.reasoning[: limit * BYTES_PER_TOKEN]
    left = limit - text_tokens(reasoning)
    content = answer.content.encode()[: left * BYTES_PER_TOKEN].decode(errors="ignore")
    return Answer(reasoning, content, (), "length", limit)


def count(answer: Answer) -> int:
    calls = sum(text_tokens(call.name) + text_tokens(call.arguments) for call in answer.calls)
    return text_tokens(answer.reasoning) + text_tokens(answer.content) + calls + END_TOKENS


def sample(schema: Mapping[str, Any]) -> Any:
    """A small value that the JSON schema admits, as far as types, enums and required properties go."""
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    for word in ("anyOf", "oneOf"):
        if schema.get(word):
            return sample(schema[word][0])
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object" or "properties" in schema:
        properties = schema.get("properties", {})
        return {name: sample(properties.get(name, {})) for name in schema.get("required", properties)}
    if kind == "array":
        return [sample(schema.get("items", {})) for _ in range(int(schema.get("minItems", 1)))]
    simple: dict[Any, Any] = {"integer": 1, "number": 1.5, "boolean": True, "null": None}
    return simple.get(kind, "text")


def _call(asked: str, tools: Sequence[Mapping[str, Any]], choice: Any) -> ToolCall | None:
    if not tools or choice == "none":
        return None
    mark = CALL.search(asked)
    forced: str | None = choice["function"]["name"] if isinstance(choice, Mapping) else None
    if mark is None and forced is None and choice != "required":
        return None
    functions = {tool["function"]["name"]: tool["function"] for tool in tools}
    wanted = forced or (mark.group(1) if mark else None)
    name = wanted if wanted is not None and wanted in functions else next(iter(functions))
    given = mark.group(2) if mark else None
    return ToolCall(name, given or json.dumps(sample(functions[name].get("parameters") or {"type": "object"})))


def _content(asked: str, form: Mapping[str, Any] | None) -> str:
    kind = (form or {}).get("type", "text")
    if kind == "json_schema":
        assert form is not None
        return json.dumps(sample(form["json_schema"].get("schema", {})), separators=(",", ":"))
    text = _text(asked)
    return json.dumps({"answer": text}, separators=(",", ":")) if kind == "json_object" else text


def _text(asked: str) -> str:
    if said := SAY.search(asked):
        return said.group(1)
    if length := LENGTH.search(asked):
        return _words(int(length.group(1)), start=zlib.crc32(asked.encode()))
    if sums := SUM.findall(asked):
        left, sign, right = sums[-1]
        first, second = int(left), int(right)
        return str(first + second if sign == "+" else first - second if sign == "-" else first * second)
    return _words(24, start=zlib.crc32(asked.encode()))


def _words(tokens: int, *, start: int) -> str:
    """Exactly so many tokens of text, different for each start."""
    size = tokens * BYTES_PER_TOKEN
    at = start % len(WORDS)
    text = " ".join([f"{start:x}", *WORDS[at:], *WORDS[:at]]) + " "
    return (text * (size // len(text) + 1))[:size]

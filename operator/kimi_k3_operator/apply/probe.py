"""Ask an engine a question with a known answer, and read its counters. The only module that speaks to engines."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

import httpx

from kimi_k3_operator.plan.targets import Target

Outcome = Literal["right", "wrong", "unclear"]

ANSWER_SECONDS = 30.0
READ_SECONDS = 5.0
LONGEST_BYTES = 8 * 1024 * 1024
QUESTION, ANSWER = "What is 17 + 25? Answer with the number alone.", "42"
_MOVING = (
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:kv_cache_usage_perc",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
)
"""A lone prefill of a million tokens moves none of these for minutes but the KV usage."""


@dataclass(frozen=True)
class Finding:
    """What one probe showed. Only `wrong` is evidence against an engine: `unclear` may be the network's fault."""

    outcome: Outcome
    reason: str
    words: str
    counters: tuple[float, ...] | None = None
    """Values of the moving counters; None where they could not be read."""
    running: float = 0.0
    """Requests the engine says it works on."""
    timed_out: bool = False
    """The completion was given up: in an engine that hangs it stays among the running requests."""


async def ask(client: httpx.AsyncClient, target: Target, *, counters_only: bool = False) -> Finding:
    """Counters, model list, then a short completion. Raises nothing.

    With `counters_only` nothing is asked that would itself move the counters of an engine that may hang.
    """
    try:
        metrics = (await _read(client, "GET", target.url + "/metrics")).text
    except (httpx.HTTPError, ValueError) as error:
        return Finding("unclear", "NotReachable", _said(error))
    counters = tuple(_value(metrics, name) for name in _MOVING)
    running = counters[3]

    def found(outcome: Outcome, reason: str, words: str) -> Finding:
        return Finding(outcome, reason, words, counters, running)

    if counters_only:
        return found("unclear", "NoAnswer", "its counters are watched, because a completion got no answer")
    block = re.search(r'^vllm:cache_config_info\{[^}]*\bblock_size="(\d+)"', metrics, re.MULTILINE)
    if block and target.block_tokens and int(block[1]) != target.block_tokens:
        return found("wrong", "BlockSize", f"the KV block is {block[1]} tokens, not {target.block_tokens}")
    try:
        listed = await _read(client, "GET", target.url + "/v1/models")
        problem = _model_problem(listed.json(), target)
        if problem:
            return found("wrong", *problem)
        body = {
            "model": target.served_name,
            "messages": [{"role": "user", "content": QUESTION}],
            "max_tokens": 32,
            "chat_template_kwargs": {"thinking": False},
        }
        response = await _read(client, "POST", target.url + "/v1/chat/completions", body)
        if response.status_code == 429 or response.status_code >= 500:
            return found("unclear", "NoAnswer", f"a completion ends with HTTP {response.status_code}")
        if response.status_code != 200:
            return found("wrong", "WrongAnswer", f"a completion is refused with HTTP {response.status_code}")
        return found(*_judge(response))
    except httpx.HTTPError as error:
        return Finding(
            "unclear", "NoAnswer", _said(error), counters, running, isinstance(error, httpx.TimeoutException)
        )
    except ValueError:
        return found("wrong", "WrongAnswer", "an answer is no JSON")


async def _read(client: httpx.AsyncClient, method: str, url: str, body: Any = None) -> httpx.Response:
    """The whole response, at most LONGEST_BYTES of it (else ValueError); a GET must succeed."""
    timeout = ANSWER_SECONDS if body is not None else READ_SECONDS
    async with client.stream(method, url, json=body, timeout=timeout) as response:
        chunks, size = [], 0
        async for chunk in response.aiter_bytes():
            chunks.append(chunk)
            size += len(chunk)
            if size > LONGEST_BYTES:
                raise ValueError(f"an answer of more than {LONGEST_BYTES} bytes")
        if method == "GET":
            response.raise_for_status()
        return httpx.Response(response.status_code, content=b"".join(chunks), request=response.request)


def _model_problem(models: Any, target: Target) -> tuple[str, str] | None:
    entries = models.get("data") if isinstance(models, dict) else None
    found = entries if isinstance(entries, list) else []
    listed = {entry.get("id"): entry for entry in found if isinstance(entry, dict)}
    model = listed.get(target.served_name)
    if model is None:
        return "ModelMissing", f"/v1/models does not list {target.served_name}"
    length = model.get("max_model_len")
    if target.max_model_len and length is not None and length != target.max_model_len:
        return "ContextLength", f"the engine serves {length} tokens of context, not {target.max_model_len}"
    return None


def _judge(response: httpx.Response) -> tuple[Outcome, str, str]:
    body = response.json()
    choices = body.get("choices") if isinstance(body, dict) else None
    message = choices[0].get("message") if isinstance(choices, list) and choices else None
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, str) or not content.strip():
        return "wrong", "WrongAnswer", "the answer to a sum is empty"
    if ANSWER not in content:
        return "wrong", "WrongAnswer", f"the answer to a sum is wrong: {content.strip()[:80]!r}"
    return "right", "Verified", ""


def _value(metrics: str, name: str) -> float:
    """Sum of a metric over its labels; 0 where it is absent."""
    pattern = rf"^{re.escape(name)}(?:\{{[^}}]*\}})? ([-+.0-9eE]+)$"
    return sum(float(found) for found in re.findall(pattern, metrics, re.MULTILINE))


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:200].rstrip(": ")

"""The operator's question to an engine, against the fake K3 engine over real HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import httpx
import pytest
import pytest_asyncio

from kimi_k3_operator.apply import probe
from kimi_k3_operator.apply.probe import ask
from kimi_k3_operator.plan.targets import Target
from tests.harness.engine import EngineSettings, FakeEngine, Fault, FaultOrder, serving


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(EngineSettings())


@pytest_asyncio.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(trust_env=False) as client:
        yield client


@pytest_asyncio.fixture
async def target(engine: FakeEngine) -> AsyncIterator[Target]:
    async with serving(engine) as url:
        settings = engine.settings
        yield Target("uid", "c1", url, settings.served_name, settings.max_model_len, settings.block_tokens)


async def test_a_healthy_engine_answers_rightly_and_shows_its_counters(http: httpx.AsyncClient, target: Target) -> None:
    first = await ask(http, target)
    assert (first.outcome, first.reason) == ("right", "Verified")
    second = await ask(http, target)
    assert first.counters is not None
    assert second.counters is not None
    assert second.counters[0] > first.counters[0], "the question itself moves the prompt tokens"


@pytest.mark.parametrize(
    ("fault", "outcome", "reason", "words"),
    [
        (Fault.NO_MODEL, "wrong", "ModelMissing", "/v1/models does not list kimi-k3"),
        (Fault.COMPLETIONS_503, "unclear", "NoAnswer", "a completion ends with HTTP 503"),
        (Fault.RATE_LIMITED, "unclear", "NoAnswer", "a completion ends with HTTP 429"),
        (Fault.ENGINE_DEAD, "unclear", "NoAnswer", "a completion ends with HTTP 500"),
        (Fault.WRONG_TEXT, "wrong", "WrongAnswer", "the answer to a sum is wrong: '!!!"),
        (Fault.EMPTY_ANSWER, "wrong", "WrongAnswer", "the answer to a sum is empty"),
        (Fault.CUT_STREAM, "unclear", "NoAnswer", ""),
    ],
)
async def test_each_fault_is_named(
    http: httpx.AsyncClient, target: Target, engine: FakeEngine, fault: Fault, outcome: str, reason: str, words: str
) -> None:
    engine.faults.replace([FaultOrder(fault)])
    found = await ask(http, target)
    assert (found.outcome, found.reason) == (outcome, reason)
    assert found.words.startswith(words)
    engine.faults.replace([])
    assert (await ask(http, target)).outcome == "right"


async def test_a_hanging_engine_is_unclear_in_bounded_time_and_its_counters_stand_still(
    http: httpx.AsyncClient, target: Target, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "ANSWER_SECONDS", 0.3)
    engine.faults.replace([FaultOrder(Fault.HANG)])
    asked = await ask(http, target)
    assert (asked.outcome, asked.reason, asked.timed_out) == ("unclear", "NoAnswer", True)
    first, second = [await ask(http, target, counters_only=True) for _ in range(2)]
    assert first.running > 0, "the question itself hangs there"
    assert first.counters == second.counters


async def test_an_engine_of_another_length_or_block_is_wrong(http: httpx.AsyncClient, target: Target) -> None:
    longer = await ask(http, replace(target, max_model_len=2097152))
    assert (longer.outcome, longer.reason) == ("wrong", "ContextLength")
    block = await ask(http, replace(target, block_tokens=777))
    assert (block.outcome, block.reason) == ("wrong", "BlockSize")


async def test_nobody_there_is_unclear(http: httpx.AsyncClient, target: Target) -> None:
    found = await ask(http, replace(target, url="http://127.0.0.1:9"))
    assert (found.outcome, found.reason, found.counters) == ("unclear", "NotReachable", None)


@pytest.mark.parametrize("answer", [b"<html>busy</html>", b"[]", b'{"data": 3}', b'{"data": [1, null]}', b"\xff\xfe"])
async def test_a_server_that_is_no_engine_is_wrong_and_never_a_traceback(
    http: httpx.AsyncClient, answer: bytes
) -> None:
    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(answer)}\r\nConnection: close\r\n\r\n".encode()
        writer.write(head + answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(reply, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        found = await ask(http, Target("uid", "c1", f"http://127.0.0.1:{port}", "kimi-k3", 1048576, 1536))
    assert found.outcome == "wrong"

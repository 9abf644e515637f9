"""What goes wrong with the fake engine when it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import aiohttp
import pytest
import pytest_asyncio

from tests.harness.engine import FAULTS, EngineSettings, FakeEngine, Fault, FaultOrder, serving
from tests.harness.engine.client import EngineClient, client
from tests.harness.engine.faults import FaultRow
from tests.harness.kube import eventually

PROGRESS = ("prompt_tokens_total", "generation_tokens_total", "num_requests_running", "kv_cache_usage_perc")


@pytest.fixture
def fake() -> FakeEngine:
    return FakeEngine(EngineSettings())


@pytest_asyncio.fixture
async def engine(fake: FakeEngine) -> AsyncIterator[EngineClient]:
    async with serving(fake) as url, client(url) as asker:
        yield asker


def test_each_fault_has_a_row_that_does_something():
    assert set(FAULTS) == set(Fault)
    for fault, row in FAULTS.items():
        hooks = (row.refuse, row.answer, row.frames, row.events, row.body, row.models)
        assert row.effect.value != "none" or any(hook is not None for hook in hooks), fault
        assert row.summary


async def test_a_healthy_port_without_a_model(engine: EngineClient):
    await engine.faults(Fault.NO_MODEL)
    assert (await engine.get("/v1/models")).json["data"] == []
    assert (await engine.get("/health")).status == 200


@pytest.mark.parametrize(
    ("fault", "status", "health"),
    [(Fault.COMPLETIONS_503, 503, 200), (Fault.RATE_LIMITED, 429, 200), (Fault.ENGINE_DEAD, 500, 503)],
)
async def test_completions_are_refused_while_the_model_is_listed(
    engine: EngineClient, fault: Fault, status: int, health: int
):
    await engine.faults(fault)
    reply = await engine.chat("1 + 1")
    assert (reply.status, reply.json["error"]["code"]) == (status, status)
    assert ("Retry-After" in reply.headers) == (status == 429)
    assert len((await engine.get("/v1/models")).json["data"]) == 1
    assert (await engine.get("/health")).status == health


async def test_a_hang_begins_with_the_next_request_and_ends_when_it_is_cleared(fake: FakeEngine, engine: EngineClient):
    await engine.chat("1 + 1")
    await engine.faults(Fault.HANG)
    hung = asyncio.create_task(engine.chat("2 + 2"))
    await eventually(lambda: fake.clock.frozen, every=0.01)
    before = await engine.metrics()
    later = asyncio.create_task(engine.chat("3 + 3"))
    await eventually(lambda: fake.simulation.in_flight == 2, every=0.01)
    after = await engine.metrics()
    assert before["num_requests_running"] == 1
    assert before.samples == after.samples
    assert not hung.done()
    assert (await engine.get("/health")).status == 200
    await engine.faults()
    assert [(await task).message["content"] for task in (hung, later)] == ["4", "6"]


async def test_a_hang_catches_a_request_that_runs(fake: FakeEngine, engine: EngineClient):
    fake.set_faults(FaultOrder(Fault.LONG_PREFILL, seconds=60))
    running = asyncio.create_task(engine.chat("1 + 1"))
    await eventually(lambda: fake.simulation.running, every=0.01)
    fake.set_faults(FaultOrder(Fault.HANG))
    assert fake.clock.frozen
    running.cancel()


async def test_in_a_long_prefill_only_kv_usage_moves(
    fake: FakeEngine, engine: EngineClient, monkeypatch: pytest.MonkeyPatch
):
    await engine.faults({"fault": "long-prefill", "seconds": 400})
    asked = asyncio.create_task(engine.chat("x" * 40_000))
    await eventually(lambda: fake.simulation.running, every=0.01)
    (turn,) = fake.simulation.running
    seen = []
    for seconds in (100, 300, 399):
        monkeypatch.setattr(fake.clock, "now", lambda at=turn.started + seconds: at)
        scrape = await engine.metrics()
        seen.append([scrape[name] for name in PROGRESS])
    monkeypatch.undo()
    tokens = {tuple(one[:3]) for one in seen}
    usage = [one[3] for one in seen]
    assert tokens == {(0.0, 0.0, 1.0)}
    assert 0 < usage[0] < usage[1] < usage[2]
    asked.cancel()
    await fake.drained()


async def test_wrong_text_and_empty_answers(engine: EngineClient):
    await engine.faults(Fault.WRONG_TEXT)
    assert set((await engine.chat("1 + 1")).message["content"]) == {"!"}
    await engine.faults(Fault.EMPTY_ANSWER)
    reply = await engine.chat("1 + 1")
    assert (reply.message["content"], reply.message["reasoning"]) == ("", None)
    assert reply.usage["completion_tokens"] == 1
    await engine.faults()
    assert (await engine.chat("1 + 1")).message["content"] == "2"


async def test_a_fault_can_begin_late_and_come_now_and_then(engine: EngineClient):
    await engine.faults({"fault": "wrong-text", "after": 1, "every": 2})
    said = [(await engine.chat("1 + 1")).message["content"][0] for _ in range(5)]
    assert said == ["2", "!", "2", "!", "2"]
    (listed,) = (await engine.get("/fake/faults")).json["faults"]
    assert (listed["fault"], listed["seen"]) == ("wrong-text", 5)


async def test_a_crash_breaks_connections_for_good(fake: FakeEngine, engine: EngineClient):
    await engine.faults({"fault": "crash", "after": 2})
    assert [(await engine.chat("1 + 1")).status for _ in range(2)] == [200, 200]
    for path in ("/v1/models", "/health"):
        with pytest.raises(aiohttp.ClientError):
            await engine.chat("1 + 1")
        with pytest.raises(aiohttp.ClientError):
            await engine.get(path)
    assert fake.crashed


async def test_slow_health_is_slow_for_health_alone(engine: EngineClient):
    await engine.faults({"fault": "slow-health", "seconds": 30})
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(engine.get("/health"), 0.05)
    assert (await engine.get("/v1/models")).status == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_can_be_cut_in_the_middle(engine: EngineClient, stream: bool):
    await engine.faults(Fault.CUT_STREAM)
    with pytest.raises(aiohttp.ClientError):
        await engine.chat("[[tokens 40]]", stream=stream)


@pytest.mark.parametrize("wrong", ["no-such", {"fault": "crash", "often": 1}, {"fault": "crash", "every": 0}, 7])
async def test_an_unknown_fault_is_refused(engine: EngineClient, wrong: object):
    assert (await engine.faults(wrong)).status == 400
    assert (await engine.get("/fake/faults")).json == {"faults": []}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (FaultRow("no end", events=lambda events: events[:-1]), False),
        (FaultRow("no role", frames=lambda frames: frames[1:]), True),
    ],
    ids=lambda value: value.summary if isinstance(value, FaultRow) else str(value),
)
async def test_a_row_can_spoil_a_stream(
    engine: EngineClient, monkeypatch: pytest.MonkeyPatch, row: FaultRow, said: bool
):
    monkeypatch.setitem(cast("dict[Fault, FaultRow]", FAULTS), Fault.WRONG_TEXT, row)
    healthy = await engine.chat("1 + 1", stream=True)
    await engine.faults(Fault.WRONG_TEXT)
    spoilt = await engine.chat("1 + 1", stream=True)
    assert len(spoilt.events) == len(healthy.events) - 1
    assert (spoilt.events[-1] == "[DONE]") == said


async def test_a_row_can_spoil_an_answer_in_one_piece(engine: EngineClient, monkeypatch: pytest.MonkeyPatch):
    row = FaultRow("no usage", body=lambda body: {**body, "usage": None})
    monkeypatch.setitem(cast("dict[Fault, FaultRow]", FAULTS), Fault.WRONG_TEXT, row)
    await engine.faults(Fault.WRONG_TEXT)
    assert (await engine.chat("1 + 1")).json["usage"] is None

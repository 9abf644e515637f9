"""Many fake engines on one port, told apart by local address."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from tests.harness.engine import EngineFleet, EngineSettings, KvTransfer, Pace
from tests.harness.engine.client import EngineClient, client
from tests.harness.kube import eventually

A, B, NOBODY = "127.0.0.2", "127.0.0.3", "127.0.0.4"


def settings_for(address: str) -> EngineSettings | None:
    names = {A: "kimi-a", B: "kimi-b"}
    if address not in names:
        return None
    return EngineSettings(served_name=names[address], transfer=KvTransfer("NixlConnector", "kv_both"))


@asynccontextmanager
async def at(fleet: EngineFleet, address: str) -> AsyncIterator[EngineClient]:
    async with client(f"http://{address}:{fleet.port}") as asker:
        yield asker


async def test_each_address_is_an_engine_of_its_own():
    async with EngineFleet(settings_for, port=0).running() as fleet, at(fleet, A) as a, at(fleet, B) as b:
        names = [(await one.get("/v1/models")).json["data"][0]["id"] for one in (a, b)]
        await a.chat("1 + 1", model="kimi-a")
        await b.faults("completions-503")
        answers = [await one.chat("1 + 1", model=name) for one, name in ((a, "kimi-a"), (b, "kimi-b"))]
        asked = [(await one.metrics())["request_success_total"] for one in (a, b)]
    assert names == ["kimi-a", "kimi-b"]
    assert [answer.status for answer in answers] == [200, 503]
    assert [answer.headers["x-fake-engine"] for answer in answers] == [A, B]
    assert asked == [2, 0]


async def test_where_no_engine_runs_connections_break():
    async with EngineFleet(settings_for, port=0).running() as fleet, at(fleet, NOBODY) as nobody:
        with pytest.raises(aiohttp.ClientError):
            await nobody.get("/health")
        assert fleet.engine(NOBODY) is None


async def test_a_forgotten_engine_breaks_its_answers_and_comes_back_cold():
    async with EngineFleet(settings_for, port=0).running() as fleet, at(fleet, A) as a:
        await a.chat("x" * 4000, model="kimi-a")
        assert (await a.chat("x" * 4000, model="kimi-a")).cached > 0
        await a.faults("hang")
        hung = asyncio.create_task(a.chat("1 + 1", model="kimi-a"))
        engine = fleet.engine(A)
        assert engine is not None
        await eventually(lambda: engine.clock.frozen, every=0.01)
        fleet.forget(A)
        with pytest.raises(aiohttp.ClientError):
            await hung
        assert (await a.chat("x" * 4000, model="kimi-a")).cached == 0
        assert fleet.engine(A) is not engine


async def test_an_engine_that_loads_does_not_answer_yet():
    async def health(asker: EngineClient) -> bool:
        try:
            return (await asker.get("/health")).status == 200
        except aiohttp.ClientError:
            return False

    loading = EngineSettings(pace=Pace(load_seconds=0.2))
    async with EngineFleet(lambda _: loading, port=0).running() as fleet, at(fleet, A) as a:
        assert not await health(a)
        await eventually(lambda: health(a), every=0.02)


async def test_a_crash_leaves_the_other_engines_alone_until_the_pod_restarts():
    async with EngineFleet(settings_for, port=0).running() as fleet, at(fleet, A) as a, at(fleet, B) as b:
        engine = fleet.engine(A)
        assert engine is not None
        await a.faults({"fault": "long-prefill", "seconds": 60})
        running = asyncio.create_task(a.chat("1 + 1", model="kimi-a"))
        await eventually(lambda: engine.simulation.running, every=0.01)
        await a.faults("crash")
        for asked in (a.chat("1 + 1", model="kimi-a"), running):
            with pytest.raises(aiohttp.ClientError):
                await asked
        with pytest.raises(aiohttp.ClientError):
            await a.get("/health")
        assert (await b.get("/health")).status == 200
        fleet.forget(A)
        assert (await a.get("/health")).status == 200


async def test_engines_of_a_fleet_hand_kv_cache_to_each_other():
    one_name = EngineSettings(transfer=KvTransfer("NixlConnector", "kv_both"))
    async with EngineFleet(lambda _: one_name, port=0).running() as fleet, at(fleet, A) as a, at(fleet, B) as b:
        asked = {"do_remote_decode": True, "do_remote_prefill": False}
        params = (await a.chat("x" * 9000, max_tokens=1, kv_transfer_params=asked)).json["kv_transfer_params"]
        reply = await b.chat("x" * 9000, kv_transfer_params=params)
        assert params["remote_host"] == A
        assert (await b.metrics())["external_prefix_cache_hits_total"] == reply.usage["prompt_tokens"] - 1

"""Cache, queue, counters and KV transfer of the fake engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from tests.harness.engine import EngineSettings, FakeEngine, KvRegistry, KvTransfer, Pace, serving
from tests.harness.engine.cache import PrefixCache
from tests.harness.engine.client import EngineClient, client
from tests.harness.kube import eventually

NIXL = KvTransfer(connector="NixlConnector", role="kv_both")
REMOTE_DECODE = {"do_remote_decode": True, "do_remote_prefill": False}
SLOW = Pace(decode=0.5)
"""An answer of more than a few tokens does not end while a test runs."""


@asynccontextmanager
async def asking(engine: FakeEngine) -> AsyncIterator[EngineClient]:
    async with serving(engine) as url, client(url) as asker:
        yield asker


def prompt(name: str, tokens: int) -> str:
    """A text of so many tokens that shares nothing with one of another name."""
    return (f"{name} " * tokens * 4)[: tokens * 4]


async def test_an_equal_prompt_hits_whole_units_the_second_time():
    async with asking(FakeEngine(EngineSettings())) as engine:
        first = await engine.chat(prompt("a", 1000))
        cold = await engine.metrics()
        second = await engine.chat(prompt("a", 1000))
        warm = await engine.metrics()
    assert (first.cached, second.cached) == (0, 1024)
    assert (cold["prefix_cache_hits_total"], warm["prefix_cache_hits_total"]) == (0, 1024)
    asked = first.usage["prompt_tokens"] + second.usage["prompt_tokens"]
    assert warm["prefix_cache_queries_total"] == warm["prompt_tokens_total"] == asked
    assert warm["prompt_tokens_by_source_total"] == asked
    assert warm["generation_tokens_total"] == 2 * first.usage["completion_tokens"]
    assert warm["request_success_total"] == 2


async def test_the_next_turn_of_a_session_hits_the_answer_too():
    async with asking(FakeEngine(EngineSettings())) as engine:
        question = {"role": "user", "content": prompt("a", 300)}
        said = (await engine.chat([question, {"role": "user", "content": "[[tokens 400]]"}])).message
        history = [question, {"role": "user", "content": "[[tokens 400]]"}, said]
        reply = await engine.chat([*history, {"role": "user", "content": "go on"}])
    assert reply.cached >= 640


async def test_another_effort_loses_the_prefix():
    async with asking(FakeEngine(EngineSettings())) as engine:
        await engine.chat(prompt("a", 1000), reasoning_effort="low")
        assert (await engine.chat(prompt("a", 1000), reasoning_effort="high")).cached == 0


async def test_without_prefix_caching_nothing_hits():
    async with asking(FakeEngine(EngineSettings(prefix_caching=False))) as engine:
        await engine.chat(prompt("a", 1000))
        assert (await engine.chat(prompt("a", 1000))).cached == 0


async def test_the_prompt_used_longest_ago_is_evicted_first():
    """State takes 6 blocks of the 10; each prompt with its answer 8 of the 47 units that are left."""
    async with asking(FakeEngine(EngineSettings(kv_blocks=10))) as engine:
        for name in ("a", "b", "c", "d", "e", "a"):
            await engine.chat(prompt(name, 1000))
        assert (await engine.chat(prompt("a", 1000))).cached == 1024
        for name in ("f", "g"):
            await engine.chat(prompt(name, 1000))
        assert (await engine.chat(prompt("a", 1000))).cached == 1024
        assert (await engine.chat(prompt("b", 1000))).cached == 0


def test_the_end_of_a_text_is_evicted_before_its_start():
    cache = PrefixCache(4)
    cache.hold([1, 2, 3], 0)
    cache.release([1, 2, 3], 0)
    cache.hold([7, 8], 0)
    assert cache.match([1, 2, 3]) == 2
    assert cache.kept == 4


def test_what_a_request_holds_is_not_evicted_and_counts_once():
    cache = PrefixCache(3)
    cache.hold([1, 2], 0)
    assert cache.fits([1, 2, 3], 0)
    assert not cache.fits([5, 6], 0)
    cache.hold([1, 2, 3], 0)
    cache.release([1, 2], 0)
    assert (cache.used, cache.match([1, 2, 3])) == (3, 3)
    cache.release([1, 2, 3], 0, computed=1)
    assert (cache.used, cache.kept) == (0, 1)


async def test_requests_beyond_the_seats_wait_and_a_client_that_leaves_frees_its_seat():
    engine = FakeEngine(EngineSettings(max_num_seqs=2, pace=SLOW))
    async with asking(engine) as asker:
        asked = [asyncio.create_task(asker.chat("[[tokens 99]]")) for _ in range(3)]
        await eventually(lambda: engine.simulation.in_flight == 3, every=0.01)
        scrape = await asker.metrics()
        assert (scrape["num_requests_running"], scrape["num_requests_waiting"]) == (2, 1)
        assert 0 < scrape["kv_cache_usage_perc"] < 1
        for task in asked[:2]:
            task.cancel()
        await eventually(lambda: engine.simulation.in_flight == 1, every=0.01)
        assert len(engine.simulation.running) == 1
        asked[2].cancel()
        await asyncio.wait_for(engine.drained(), 10)
        assert (await asker.metrics())["kv_cache_usage_perc"] == 0
    assert engine.counters.finished["abort"] == 3


async def test_a_request_waits_for_room_in_the_cache():
    engine = FakeEngine(EngineSettings(kv_blocks=12, pace=SLOW))
    async with asking(engine) as asker:
        asked = [asyncio.create_task(asker.chat("[[tokens 99]]")) for _ in range(2)]
        await eventually(lambda: engine.simulation.in_flight == 2, every=0.01)
        assert (len(engine.simulation.running), len(engine.simulation.waiting)) == (1, 1)
        for task in asked:
            task.cancel()
        await engine.drained()


async def test_a_full_queue_answers_503():
    engine = FakeEngine(EngineSettings(version="0.32.0", max_num_queued=1, pace=SLOW))
    async with asking(engine) as asker:
        asked = asyncio.create_task(asker.chat("[[tokens 99]]"))
        await eventually(lambda: engine.simulation.in_flight == 1, every=0.01)
        assert (await asker.chat("1 + 1")).status == 503
        assert (await asker.metrics())["admission_rejections_total"] == 1
        asked.cancel()
        await engine.drained()


async def test_prefills_follow_one_another_and_take_their_tokens(monkeypatch: pytest.MonkeyPatch):
    engine = FakeEngine(EngineSettings(pace=Pace(prefill=10.0)))
    async with asking(engine) as asker:
        asked = [asyncio.create_task(asker.chat(prompt(name, 1000))) for name in "ab"]
        await eventually(lambda: len(engine.simulation.running) == 2, every=0.01)
        first, second = sorted(engine.simulation.running, key=lambda turn: turn.first_token)
        assert first.first_token - first.started == pytest.approx(first.prompt_tokens / 10)
        assert second.started == first.first_token
        for task in asked:
            task.cancel()
        await engine.drained()


async def test_drafts_are_counted_where_there_is_a_draft():
    async with asking(FakeEngine(EngineSettings(draft_tokens=7, accepted_length=3.0))) as engine:
        await engine.chat("[[tokens 300]]", reasoning_effort="none")
        scrape = await engine.metrics()
    drafts, accepted = scrape["spec_decode_num_drafts_total"], scrape["spec_decode_num_accepted_tokens_total"]
    assert (drafts, accepted) == (100, 200)
    assert scrape["spec_decode_num_draft_tokens_total"] == 700
    assert scrape["spec_decode_num_accepted_tokens_per_pos_total"] == accepted


async def test_a_scrape_says_what_the_endpoint_picker_and_the_operator_read():
    async with asking(FakeEngine(EngineSettings())) as engine:
        scrape = await engine.metrics()
    cache = scrape.labels("cache_config_info")
    assert (cache["block_size"], cache["num_gpu_blocks"]) == ("1536", "2135")
    assert scrape.labels("num_requests_running") == {"engine": "0", "model_name": "kimi-k3"}
    assert scrape["time_to_first_token_seconds_count"] == 0
    assert scrape["process_start_time_seconds"] > 0
    with pytest.raises(KeyError):
        scrape["spec_decode_num_drafts_total"]


def test_one_request_of_the_full_context_takes_689_blocks_and_three_fit():
    settings = EngineSettings()
    units = -(-settings.max_model_len // settings.block_tokens) * settings.block_tokens // settings.unit_tokens
    blocks = (units + settings.state_units) * settings.unit_tokens // settings.block_tokens
    assert (blocks, settings.kv_blocks // blocks) == (689, 3)


@asynccontextmanager
async def pair(**decode: Any) -> AsyncIterator[tuple[FakeEngine, EngineClient, FakeEngine, EngineClient]]:
    """A prefill and a decode engine that know each other."""
    registry, settings = KvRegistry(), EngineSettings(transfer=NIXL)
    first = FakeEngine(settings, registry=registry, address="127.0.0.1")
    second = FakeEngine(replace(settings, **decode), registry=registry, address="127.0.0.1")
    async with asking(first) as prefill, asking(second) as decoding:
        yield first, prefill, second, decoding


async def test_a_decode_engine_pulls_what_the_prefill_engine_computed():
    async with pair() as (first, prefill, _, decode):
        done = await prefill.chat(prompt("a", 4000), max_tokens=1, kv_transfer_params=REMOTE_DECODE)
        params = done.json["kv_transfer_params"]
        assert params["do_remote_prefill"]
        assert first.source.leases == 1
        assert (await prefill.metrics())["kv_cache_usage_perc"] > 0
        reply = await decode.chat(prompt("a", 4000), kv_transfer_params=params)
        scrape = await decode.metrics()
        assert first.source.leases == 0
        assert (await prefill.metrics())["kv_cache_usage_perc"] == 0
    tokens = reply.usage["prompt_tokens"]
    assert reply.cached == scrape["external_prefix_cache_hits_total"] == tokens - 1
    assert scrape["external_prefix_cache_queries_total"] == tokens
    assert scrape["prefix_cache_hits_total"] == 0


async def test_only_a_prompt_that_ends_at_its_limit_leaves_blocks():
    async with pair() as (first, prefill, _, _):
        reply = await prefill.chat("1 + 1", kv_transfer_params=REMOTE_DECODE)
        assert reply.json["kv_transfer_params"] is None
        assert first.source.leases == 0


@pytest.mark.parametrize(("policy", "status"), [("fail", 500), ("recompute", 200)])
async def test_blocks_that_are_gone_fail_the_request_or_are_computed(policy: str, status: int):
    async with pair(transfer=replace(NIXL, failure_policy=policy)) as (_, prefill, second, decode):
        params = (await prefill.chat("Hi", max_tokens=1, kv_transfer_params=REMOTE_DECODE)).json["kv_transfer_params"]
        await decode.chat("Hi", kv_transfer_params=params)
        assert (await decode.chat("Hi", kv_transfer_params=params)).status == status
        assert second.counters.failed_transfers == 1


async def test_engines_with_other_drafts_exchange_nothing():
    async with pair(draft_tokens=3) as (_, prefill, _, decode):
        params = (await prefill.chat("Hi", max_tokens=1, kv_transfer_params=REMOTE_DECODE)).json["kv_transfer_params"]
        reply = await decode.chat("Hi", kv_transfer_params=params)
    assert (reply.status, "hash mismatch" in reply.json["error"]["message"]) == (500, True)


async def test_blocks_nobody_pulls_are_free_when_the_lease_ends():
    engine = FakeEngine(EngineSettings(transfer=replace(NIXL, lease_seconds=0.01)))
    async with asking(engine) as asker:
        await asker.chat("Hi", max_tokens=1, kv_transfer_params=REMOTE_DECODE)
        await eventually(lambda: engine.counters.expired_transfers == 1, every=0.01)
        assert engine.simulation.cache.used == 0

"""The fake engine as a process: start, drain, crash, groups of ranks, KV cache between processes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import aiohttp
import pytest

from tests.harness.engine.client import EngineClient, client
from tests.harness.kube import eventually
from tests.harness.processes import Process, free_ports

SERVE = [sys.executable, "-m", "tests.harness.engine", "serve", "/weights", "--tensor-parallel-size", "8"]
SERVE += ["--served-model-name", "kimi-k3", "--host", "127.0.0.1"]
ROOT = Path(__file__).resolve().parents[2]
SOURCES = {"PYTHONPATH": f"{ROOT}:{ROOT / 'operator'}"}
READY_SECONDS = 60


@contextmanager
def engine(log: Path, *flags: str, **env: str) -> Iterator[Process]:
    process = Process("fake engine", [*SERVE, *flags], log, {**SOURCES, **env})
    process.start()
    try:
        yield process
    finally:
        process.stop()


@asynccontextmanager
async def serving(log: Path, *flags: str, **env: str) -> AsyncIterator[tuple[Process, EngineClient]]:
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    with engine(log, "--port", str(port), *flags, **env) as process:
        await asyncio.to_thread(process.wait_ready, f"{url}/health", READY_SECONDS)
        async with client(url) as asker:
            yield process, asker


def test_an_unknown_flag_ends_the_process_with_code_2():
    command = [*SERVE, "--no-such-flag"]
    ended = subprocess.run(command, env=SOURCES, capture_output=True, text=True, timeout=READY_SECONDS, check=False)
    assert (ended.returncode, ended.stderr.strip()) == (
        2,
        "vllm serve: error: unrecognized arguments: --no-such-flag",
    )


@pytest.mark.parametrize("listens", [True, False])
async def test_running_requests_end_after_sigterm_and_new_ones_are_refused(tmp_path: Path, listens: bool):
    slow = {"FAKE_VLLM_DECODE_RATE": "40", "FAKE_VLLM_DRAIN_LISTENS": str(int(listens))}
    async with serving(tmp_path / "log", "--shutdown-timeout", "60", **slow) as (process, asker):
        asked = asyncio.create_task(asker.chat("[[tokens 60]]", reasoning_effort="none"))
        await eventually(lambda: running(asker), every=0.02)
        process.terminate()
        await eventually(lambda: "draining" in process.tail(), every=0.02)
        async with client(asker.url) as newcomer:
            if listens:
                assert (await newcomer.chat("1 + 1")).status == 503
            else:
                with pytest.raises(aiohttp.ClientConnectorError):
                    await newcomer.chat("1 + 1")
        assert (await asked).usage["completion_tokens"] == 61
        await eventually(lambda: not process.running, every=0.02)


async def test_without_a_shutdown_timeout_requests_are_broken_off(tmp_path: Path):
    async with serving(tmp_path / "log", FAKE_VLLM_DECODE_RATE="1") as (process, asker):
        asked = asyncio.create_task(asker.chat("[[tokens 60]]"))
        await eventually(lambda: running(asker), every=0.02)
        process.terminate()
        with pytest.raises(aiohttp.ClientError):
            await asked
        await eventually(lambda: not process.running, every=0.02)


async def test_a_crash_ends_the_process(tmp_path: Path):
    async with serving(tmp_path / "log", FAKE_VLLM_FAULT="crash") as (process, asker):
        with pytest.raises(aiohttp.ClientError):
            await asker.chat("1 + 1")
        await eventually(lambda: not process.running, every=0.02)


async def test_a_group_serves_when_its_worker_is_there_and_ends_when_it_leaves(tmp_path: Path):
    port, master = free_ports(2)
    group = ["--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", str(master), "--port", str(port)]
    env = {"FAKE_VLLM_RENDEZVOUS": "1"}
    with engine(tmp_path / "leader", *group, "--node-rank", "0", **env) as leader:
        with engine(tmp_path / "worker", *group, "--node-rank", "1", "--headless", **env) as worker:
            await asyncio.to_thread(leader.wait_ready, f"http://127.0.0.1:{port}/health", READY_SECONDS)
            assert "headless" in worker.tail()
            worker.terminate()
            await eventually(lambda: not worker.running, every=0.02)
        await eventually(lambda: not leader.running, every=0.02)
        assert "a rank of the group is gone" in leader.tail()


async def test_kv_cache_goes_from_process_to_process_over_the_side_channel(tmp_path: Path):
    ports = free_ports(2)
    roles = {}
    config = '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'
    for name, port in zip(("prefill", "decode"), ports, strict=True):
        side = {"VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1", "VLLM_NIXL_SIDE_CHANNEL_PORT": str(port)}
        roles[name] = serving(tmp_path / name, "--kv-transfer-config", config, **side)
    async with roles["prefill"] as (_, prefill), roles["decode"] as (_, decode):
        asked = {"do_remote_decode": True, "do_remote_prefill": False}
        params = (await prefill.chat("x" * 9000, max_tokens=1, kv_transfer_params=asked)).json["kv_transfer_params"]
        reply = await decode.chat("x" * 9000, kv_transfer_params=params)
        assert reply.status == 200
        assert (await decode.metrics())["external_prefix_cache_hits_total"] == reply.usage["prompt_tokens"] - 1
        assert (await decode.chat("x" * 9000, kv_transfer_params={**params, "remote_port": 1})).status == 500


async def running(asker: EngineClient) -> bool:
    return (await asker.metrics())["num_requests_running"] > 0

"""One fake engine as a process: loading, rank of a group, serving, end on SIGTERM."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from aiohttp import web

from tests.harness.engine.command_line import CommandLineError, Launch, launch_from_command
from tests.harness.engine.engine import FakeEngine
from tests.harness.engine.faults import FaultOrder, order_of
from tests.harness.engine.fleet import listening
from tests.harness.engine.transfer import side_channel

RENDEZVOUS = "FAKE_VLLM_RENDEZVOUS"
"""1: rank 0 of a group loads only when all other ranks have connected, and ends with exit code 1 when one leaves."""
FAULT = "FAKE_VLLM_FAULT"
RETRY_SECONDS = 0.1


def run(words: Sequence[str]) -> int:
    """Serve until SIGTERM; returns the exit code."""
    try:
        launch = launch_from_command(words, os.environ)
        faults = [order_of(name) for name in os.environ.get(FAULT, "").split(",") if name]
    except CommandLineError as refused:
        print(refused, file=sys.stderr, flush=True)
        return refused.exit_code
    for warning in launch.warnings:
        print(f"WARNING {warning}", file=sys.stderr, flush=True)
    return asyncio.run(_headless(launch, os.environ) if launch.headless else _serve(launch, os.environ, faults))


async def _serve(launch: Launch, env: Mapping[str, str], faults: Sequence[FaultOrder]) -> int:
    settings = launch.settings
    ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    terminated = _on_sigterm()
    engine = FakeEngine(settings, on_crash=lambda: _crash())
    engine.set_faults(*faults)
    async with AsyncExitStack() as stack:
        if launch.nodes > 1 and env.get(RENDEZVOUS) == "1":
            gathered = await stack.enter_async_context(_ranks(launch, ended))
            await _first(gathered, terminated, ended)
        await _first(asyncio.create_task(asyncio.sleep(settings.pace.load_seconds)), terminated, ended)
        if terminated.done() or ended.done():
            return _code(ended)
        if settings.transfer is not None:
            await stack.enter_async_context(_side_channel(engine))
        listener = await stack.enter_async_context(listening(engine.handle, launch.host, launch.port))
        print(f"INFO serving {settings.served_name} on {launch.host}:{launch.port}", flush=True)
        await _first(terminated, ended)
        if not ended.done() and settings.shutdown_seconds > 0:
            if not settings.drain_listens:
                await listener.refuse()
            await _drain(engine, settings.shutdown_seconds, ended)
    return _code(ended)


async def _drain(engine: FakeEngine, seconds: float, ended: asyncio.Future[int]) -> None:
    engine.draining = True
    print(f"INFO draining for at most {seconds:.0f} s, {engine.simulation.in_flight} requests", flush=True)
    await _first(asyncio.create_task(engine.drained()), ended, asyncio.create_task(asyncio.sleep(seconds)))
    # what a request has just ended with is on its way to the socket
    await asyncio.sleep(RETRY_SECONDS)


async def _headless(launch: Launch, env: Mapping[str, str]) -> int:
    """A rank without a port; it ends at once on SIGTERM, whatever the shutdown timeout."""
    terminated = _on_sigterm()
    print(f"INFO rank {launch.rank} of {launch.nodes} runs headless", flush=True)
    if env.get(RENDEZVOUS) == "1":
        joining = asyncio.create_task(_join(launch))
        await _first(joining, terminated)
        joining.cancel()
    await terminated
    return 0


async def _join(launch: Launch) -> None:
    """Stay connected to rank 0 for good."""
    while True:
        try:
            reader, writer = await asyncio.open_connection(launch.master_address, launch.master_port)
        except OSError:
            await asyncio.sleep(RETRY_SECONDS)
            continue
        try:
            await reader.read()
            await asyncio.get_running_loop().create_future()
        finally:
            writer.close()


@asynccontextmanager
async def _ranks(launch: Launch, ended: asyncio.Future[int]) -> AsyncIterator[asyncio.Future[None]]:
    """Listen for the other ranks; the future is done when all are there."""
    gathered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    present = 0

    async def joined(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal present
        present += 1
        if present == launch.nodes - 1 and not gathered.done():
            gathered.set_result(None)
        await reader.read()
        writer.close()
        present -= 1
        if gathered.done() and not ended.done():
            print("ERROR a rank of the group is gone", file=sys.stderr, flush=True)
            ended.set_result(1)

    server = await asyncio.start_server(joined, launch.host, launch.master_port)
    try:
        yield gathered
    finally:
        server.close()


@asynccontextmanager
async def _side_channel(engine: FakeEngine) -> AsyncIterator[None]:
    transfer = engine.settings.transfer
    assert transfer is not None
    runner = web.ServerRunner(side_channel(engine.source))
    await runner.setup()
    try:
        await web.TCPSite(runner, transfer.host, transfer.port).start()
        yield
    finally:
        await runner.cleanup()


def _on_sigterm() -> asyncio.Future[None]:
    loop = asyncio.get_running_loop()
    terminated: asyncio.Future[None] = loop.create_future()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: None if terminated.done() else terminated.set_result(None))
    return terminated


async def _first(*futures: asyncio.Future[None] | asyncio.Future[int]) -> None:
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


def _code(ended: asyncio.Future[int]) -> int:
    return ended.result() if ended.done() else 0


def _crash() -> None:
    print("ERROR EngineCore encountered a fatal error", file=sys.stderr, flush=True)
    os._exit(1)

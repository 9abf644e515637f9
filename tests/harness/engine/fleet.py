"""Servers for fake engines: one for one engine, and one that is another engine at each local address."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from aiohttp import web

from tests.harness.engine.engine import FakeEngine
from tests.harness.engine.settings import EngineSettings
from tests.harness.engine.transfer import KvRegistry

READ_BYTES = 1 << 20
KEEP_ALIVE_SECONDS = 900
BACKLOG = 4096
BREAK_OFF_SECONDS = 0.01
"""For requests under way when a server stops; 0 would mean without end."""

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class Listener:
    port: int
    site: web.SockSite

    async def refuse(self) -> None:
        """Take no more connections; those that are open go on."""
        await self.site.stop()


def http_server(handler: Handler) -> web.Server:
    """A server without router and access log, for bodies of any size; a client that leaves ends its request."""
    loop = asyncio.get_running_loop()
    return web.Server(
        handler,
        request_factory=lambda message, payload, protocol, writer, task: web.BaseRequest(
            message, payload, protocol, writer, task, loop, client_max_size=0
        ),
        handler_cancellation=True,
        access_log=None,
        read_bufsize=READ_BYTES,
        keepalive_timeout=KEEP_ALIVE_SECONDS,
    )


@asynccontextmanager
async def listening(handler: Handler, host: str, port: int) -> AsyncIterator[Listener]:
    """Serve while the body runs; port 0 takes a free one."""
    runner = web.ServerRunner(http_server(handler), shutdown_timeout=BREAK_OFF_SECONDS)
    await runner.setup()
    sock = socket.socket()
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        site = web.SockSite(runner, sock, backlog=BACKLOG)
        await site.start()
        yield Listener(int(sock.getsockname()[1]), site)
    finally:
        await runner.cleanup()
        sock.close()


@asynccontextmanager
async def serving(engine: FakeEngine, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Serve one engine while the body runs; yields its URL without a path."""
    async with listening(engine.handle, host, port) as listener:
        yield f"http://{host}:{listener.port}"
    engine.close()


class EngineFleet:
    """An engine of its own at every local address of one port, made when a client first connects there.

    `settings_for` gets the address and returns what the engine is; None where no engine runs, and then connections
    break as if nothing listened. While an engine loads its connections break too.
    """

    def __init__(
        self, settings_for: Callable[[str], EngineSettings | None], *, host: str = "0.0.0.0", port: int = 8000
    ) -> None:
        self.registry = KvRegistry()
        self.port = port
        self._host = host
        self._settings_for = settings_for
        self._engines: dict[str, FakeEngine] = {}
        self._ready_at: dict[str, float] = {}
        self._connections: dict[str, set[asyncio.Transport]] = {}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[EngineFleet]:
        """Listen while the body runs; `port` is the real one then."""
        async with listening(self.handle, self._host, self.port) as listener:
            self.port = listener.port
            yield self
        for address in list(self._engines):
            self.forget(address)

    def engine(self, address: str) -> FakeEngine | None:
        """The engine at an address, made and starting to load now if need be; None where none is to run."""
        found = self._engines.get(address)
        if found is None and (settings := self._settings_for(address)) is not None:
            settings = replace(settings, name=address) if settings.name == "fake" else settings
            found = FakeEngine(
                settings, registry=self.registry, on_crash=lambda: self._break_off(address), address=address
            )
            self._engines[address] = found
            self._ready_at[address] = asyncio.get_running_loop().time() + settings.pace.load_seconds
        return found

    def forget(self, address: str) -> None:
        """The engine there is gone with its cache and counters and its connections break; the next one is fresh."""
        engine = self._engines.pop(address, None)
        self._ready_at.pop(address, None)
        self._break_off(address)
        if engine is not None:
            engine.close()

    def loaded(self, address: str) -> bool:
        """Whether the engine there exists and has loaded."""
        ready = self._ready_at.get(address)
        return ready is not None and asyncio.get_running_loop().time() >= ready

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request with the engine of the address that the client connected to."""
        transport = request.transport
        if transport is None:
            return web.Response(status=503)
        address = str(transport.get_extra_info("sockname")[0])
        engine = self.engine(address)
        if engine is None or not self.loaded(address):
            transport.abort()
            return web.Response(status=503)
        self._track(address, transport)
        return await engine.handle(request)

    def _break_off(self, address: str) -> None:
        for transport in self._connections.pop(address, ()):
            transport.abort()

    def _track(self, address: str, transport: asyncio.Transport) -> None:
        known = self._connections.setdefault(address, set())
        if transport not in known:
            known.difference_update([one for one in known if one.is_closing()])
            known.add(transport)

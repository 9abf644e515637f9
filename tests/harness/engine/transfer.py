"""KV cache that moves from a prefill engine to a decode engine, with the request fields of vLLM's NixlConnector.

A request with `do_remote_decode` leaves its blocks behind under a lease, and its answer names them. A request with
`do_remote_prefill` and that answer's fields pulls them: from the registry where both engines live in this process,
else by HTTP from the side channel that the fields name. The blocks are free after the pull or when the lease ends.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp import web

from tests.harness.engine.settings import EngineSettings

PULL_PATH = "/kv/pull"
PULL_SECONDS = 30.0


class TransferError(Exception):
    """The blocks cannot be had; the message says why."""


@dataclass
class Lease:
    tokens: int
    release: Callable[[], None]
    timer: asyncio.TimerHandle


class KvSource:
    """The blocks that one engine keeps for others."""

    def __init__(self, settings: EngineSettings, expired: Callable[[], None]) -> None:
        self.engine_id = str(uuid.uuid4())
        self._settings = settings
        self._expired = expired
        self._leases: dict[str, Lease] = {}

    @property
    def leases(self) -> int:
        return len(self._leases)

    def keep(self, tokens: int, release: Callable[[], None], *, host: str) -> dict[str, Any]:
        """Keep the blocks of a finished prompt; returns the fields with which a decode engine gets them."""
        transfer = self._settings.transfer
        assert transfer is not None
        request_id = f"cmpl-{uuid.uuid4().hex}"
        timer = asyncio.get_running_loop().call_later(transfer.lease_seconds, self._expire, request_id)
        self._leases[request_id] = Lease(tokens, release, timer)
        blocks = -(-tokens // self._settings.block_tokens)
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [list(range(1, blocks + 1))],
            "remote_engine_id": self.engine_id,
            "remote_request_id": request_id,
            "remote_host": host,
            "remote_port": transfer.port,
            "tp_size": self._settings.tensor_parallel,
            "remote_num_tokens": tokens,
        }

    def take(self, request_id: str, compatibility: str) -> int:
        """Hand the blocks over and free them here; returns their tokens. Raises TransferError."""
        if compatibility != self._settings.compatibility:
            raise TransferError("NIXL compatibility hash mismatch: the engines differ in version, model or speculation")
        lease = self._leases.pop(request_id, None)
        if lease is None:
            raise TransferError(f"no blocks are kept for request {request_id}")
        lease.timer.cancel()
        lease.release()
        return lease.tokens

    def close(self) -> None:
        for lease in self._leases.values():
            lease.timer.cancel()
        self._leases.clear()

    def _expire(self, request_id: str) -> None:
        self._leases.pop(request_id).release()
        self._expired()


class KvRegistry:
    """The engines of this process that can hand over KV cache, by engine id."""

    def __init__(self) -> None:
        self._sources: dict[str, KvSource] = {}

    def add(self, source: KvSource) -> None:
        self._sources[source.engine_id] = source

    def remove(self, source: KvSource) -> None:
        self._sources.pop(source.engine_id, None)

    async def pull(self, params: Mapping[str, Any], settings: EngineSettings) -> int:
        """Tokens of KV cache that the fields of a decode request bring. Raises TransferError."""
        try:
            engine, request_id = str(params["remote_engine_id"]), str(params["remote_request_id"])
            host, port = str(params["remote_host"]), int(params["remote_port"])
        except (KeyError, TypeError, ValueError) as missing:
            raise TransferError(f"kv_transfer_params lack {missing}") from None
        source = self._sources.get(engine)
        if source is not None:
            tokens = source.take(request_id, settings.compatibility)
        else:
            tokens = await _pull(f"http://{host}:{port}{PULL_PATH}", engine, request_id, settings.compatibility)
        await asyncio.sleep(tokens / settings.pace.transfer)
        return tokens


async def _pull(url: str, engine: str, request_id: str, compatibility: str) -> int:
    asked = {"engine_id": engine, "request_id": request_id, "compatibility": compatibility}
    timeout = aiohttp.ClientTimeout(total=PULL_SECONDS)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session, session.post(url, json=asked) as answer:
            told = await answer.json()
    except (aiohttp.ClientError, TimeoutError, ValueError) as failed:
        raise TransferError(f"handshake with {url} failed: {failed}") from None
    if "tokens" not in told:
        raise TransferError(str(told.get("error")))
    return int(told["tokens"])


def side_channel(source: KvSource) -> web.Server:
    """The server with which one engine hands KV cache to engines of other processes."""

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        asked = await request.json()
        if asked["engine_id"] != source.engine_id:
            return web.json_response({"error": "another engine listens here"}, status=409)
        try:
            return web.json_response({"tokens": source.take(asked["request_id"], asked["compatibility"])})
        except TransferError as refused:
            return web.json_response({"error": str(refused)}, status=409)

    return web.Server(handle)

"""FakeEndpointPicker: a stand-in for the endpoint picker of llm-d-router, for tests of what is in front of it.

It speaks Envoy's ext_proc over gRPC as the real one does: full-duplex streamed bodies, the request's headers held back
until the body has ended, the endpoint named in `x-gateway-destination-endpoint`, a marker header on answers, a
certificate of its own, health on a port without TLS. It knows no pods, no metrics and no prefix cache: endpoints are
given, and its policies imitate the real scorers' direction, not their numbers.

The few protobuf messages that are needed are written by hand below (field numbers are those of Envoy's API v3).
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # else gRPC warns whenever a test starts a process

import grpc
import grpc.aio

DESTINATION = "x-gateway-destination-endpoint"
CHUNK_BYTES = 62_000
BYTES_PER_TOKEN = 4
"""The real token producer estimates with this as well."""
_SERVING, _NOT_SERVING = b"\x08\x01", b"\x08\x02"

# ---- protobuf, as little as is needed -------------------------------------------------------------------------------


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def number(tag: int, value: int) -> bytes:
    return varint(tag << 3) + varint(value)


def nested(tag: int, *parts: bytes) -> bytes:
    return varint(tag << 3 | 2) + varint(sum(map(len, parts))) + b"".join(parts)


def fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Tag and value (bytes, or an int) of each field. Raises ValueError for a wire type that Envoy does not send."""
    at = 0

    def read() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    while at < len(message):
        head = read()
        if head & 7 == 0:
            yield head >> 3, read()
        elif head & 7 == 2:
            size = read()
            yield head >> 3, message[at : at + size]
            at += size
        else:
            raise ValueError(f"wire type {head & 7}")


def headers_of(message: bytes) -> dict[str, str]:
    """Names and values of an HttpHeaders message."""
    found = {}
    for header_map in (value for tag, value in fields(message) if tag == 1):
        for _, header in fields(header_map):
            parts = dict(fields(header))
            found[parts.get(1, b"").decode()] = (parts.get(3) or parts.get(2) or b"").decode("utf-8", "replace")
    return found


def _set_headers(headers: Mapping[str, str]) -> bytes:
    """A CommonResponse that sets `headers`, whatever is there."""
    options = (
        nested(1, nested(1, nested(1, name.encode()), nested(3, value.encode())), number(3, 2))
        for name, value in headers.items()
    )
    return nested(1, nested(2, *options))


def _body(tag: int, data: bytes, end: bool) -> bytes:
    return nested(tag, nested(1, nested(3, nested(3, nested(1, data), number(2, int(end))))))


def _refusal(status: int, message: str) -> bytes:
    return nested(7, nested(1, number(1, status)), nested(3, message.encode()))


# ---- picking --------------------------------------------------------------------------------------------------------


@dataclass
class Load:
    """What is under way at one endpoint."""

    requests: int = 0
    tokens: int = 0


@dataclass(frozen=True)
class Pick:
    """One decision: the request's session key, its headers as the picker saw them, body size, and where it went."""

    session: str | None
    headers: Mapping[str, str]
    body_bytes: int
    endpoint: str


Policy = Callable[[str | None, Mapping[str, Load]], str]
"""From session key and load of every endpoint to an endpoint."""


class SessionAffinity:
    """Affinity 3, tokens in flight 1, requests in flight 1, the highest sum; equal ones by chance."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._homes: dict[str, str] = {}

    def __call__(self, session: str | None, load: Mapping[str, Load]) -> str:
        most_tokens = max(one.tokens for one in load.values()) or 1
        most_requests = max(one.requests for one in load.values()) or 1
        home = self._homes.get(session or "")

        def score(endpoint: str) -> float:
            one = load[endpoint]
            return 3.0 * (endpoint == home) + 2 - one.tokens / most_tokens - one.requests / most_requests

        best = max(map(score, load))
        endpoint = self._random.choice([one for one in load if score(one) == best])
        if session:
            self._homes[session] = endpoint
        return endpoint


class Chance:
    """Any endpoint."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def __call__(self, session: str | None, load: Mapping[str, Load]) -> str:
        return self._random.choice(list(load))


def session_hash(session: str | None, load: Mapping[str, Load]) -> str:
    """The endpoint that the hash of the session falls on, whatever its load."""
    digest = hashlib.sha256((session or "").encode()).digest()
    return list(load)[int.from_bytes(digest[:8]) % len(load)]


# ---- the server -----------------------------------------------------------------------------------------------------


@dataclass
class FakeEndpointPicker:
    """A server with a thread of its own; use it in a `with`. `certificate` is key and chain in PEM.

    `picks`, `load` and `open_streams` may be read from any thread; `settled` waits for them.
    """

    endpoints: Sequence[str]
    key_header: str
    certificate: tuple[bytes, bytes]
    port: int
    health_port: int
    policy: Policy = field(default_factory=SessionAffinity)
    picks: list[Pick] = field(default_factory=list)
    open_streams: int = 0
    refuse: tuple[int, str] | None = None
    """Status and message for every request, as when no endpoint is ready."""

    def __post_init__(self) -> None:
        self.load = {endpoint: Load() for endpoint in self.endpoints}
        self._changed = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="endpoint-picker", daemon=True)

    def __enter__(self) -> FakeEndpointPicker:
        self._thread.start()
        self._server = self._call(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._server.stop(0))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def counts(self) -> Counter[str]:
        """Requests per endpoint."""
        return Counter(pick.endpoint for pick in self.picks)

    def settled(self, seconds: float = 10.0) -> bool:
        """Whether nothing is under way within `seconds`."""
        with self._changed:
            return self._changed.wait_for(lambda: self.open_streams == 0, seconds)

    def _call(self, coroutine: Any) -> Any:
        found: Future[Any] = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        return found.result(30)

    async def _start(self) -> Any:
        server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1), ("grpc.so_reuseport", 0)])
        process = grpc.stream_stream_rpc_method_handler(self._process)
        check = grpc.unary_unary_rpc_method_handler(self._check)
        server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(
                    "envoy.service.ext_proc.v3.ExternalProcessor", {"Process": process}
                ),
                grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Check": check}),
            )
        )
        server.add_secure_port(f"127.0.0.1:{self.port}", grpc.ssl_server_credentials([self.certificate]))
        server.add_insecure_port(f"127.0.0.1:{self.health_port}")
        await server.start()
        return server

    async def _check(self, request: bytes, context: Any) -> bytes:
        return _SERVING

    async def _process(self, messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        with self._changed:
            self.open_streams += 1
        one = _Request(self)
        try:
            async for message in messages:
                for tag, value in fields(message):
                    for answer in one.answers(tag, value):
                        yield answer
        finally:
            with self._changed:
                one.end()
                self.open_streams -= 1
                self._changed.notify_all()


class _Request:
    """One request on its way through the picker."""

    def __init__(self, picker: FakeEndpointPicker) -> None:
        self._picker = picker
        self._headers: dict[str, str] = {}
        self._chunks: list[bytes] = []
        self._load: Load | None = None
        self._tokens = 0

    def answers(self, tag: int, value: Any) -> Iterator[bytes]:
        """What the picker says to one message of Envoy. 2, 4, 6 are of the request; 3, 5, 7 of the response."""
        if tag == 2:
            self._headers = headers_of(value)
            if dict(fields(value)).get(3):
                yield from self._decided(trailers=False)
        elif tag == 4:
            parts = dict(fields(value))
            self._chunks.append(parts.get(1, b""))
            if parts.get(2):
                yield from self._decided(trailers=False)
        elif tag == 6:
            yield from self._decided(trailers=True)
            yield nested(5)
        elif tag == 3:
            yield nested(2, _set_headers({"x-went-into-resp-headers": "true"}))
        elif tag == 5:
            parts = dict(fields(value))
            yield _body(4, parts.get(1, b""), bool(parts.get(2)))
        elif tag == 7:
            yield nested(6)

    def _decided(self, *, trailers: bool) -> Iterator[bytes]:
        picker = self._picker
        if picker.refuse is not None:
            yield _refusal(*picker.refuse)
            return
        body = b"".join(self._chunks)
        session = self._headers.get(picker.key_header)
        endpoint = picker.policy(session, picker.load)
        picker.picks.append(Pick(session, dict(self._headers), len(body), endpoint))
        self._load, self._tokens = picker.load[endpoint], len(body) // BYTES_PER_TOKEN
        self._load.requests += 1
        self._load.tokens += self._tokens
        yield nested(1, _set_headers({DESTINATION: endpoint}))
        for at in range(0, len(body), CHUNK_BYTES):
            last = at + CHUNK_BYTES >= len(body)
            yield _body(3, body[at : at + CHUNK_BYTES], last and not trailers)

    def end(self) -> None:
        if self._load is not None:
            self._load.requests -= 1
            self._load.tokens -= self._tokens
            self._load = None

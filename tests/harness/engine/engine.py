"""`FakeEngine`: the HTTP side of one fake engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from aiohttp import web

from tests.harness.engine import wire
from tests.harness.engine.answers import Answer, limited
from tests.harness.engine.clock import EngineClock
from tests.harness.engine.contract import (
    Question,
    chat_question,
    check_model,
    completion_question,
    parse_body,
)
from tests.harness.engine.counters import Counters, Exposition
from tests.harness.engine.errors import ApiError
from tests.harness.engine.faults import Effect, FaultBoard, FaultOrder, order_of
from tests.harness.engine.prompt import cache_units, render_chat, text_tokens, token_ids
from tests.harness.engine.settings import EngineSettings
from tests.harness.engine.simulation import Simulation, Turn
from tests.harness.engine.transfer import KvRegistry, KvSource, TransferError

Handler = Callable[[web.BaseRequest], Any]
SSE = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}


class BrokenOffError(Exception):
    """The connection ends without an answer."""


class FakeEngine:
    """One engine. Give its `handle` to an aiohttp server; `on_crash` is what a crash does beside dropping requests.

    `address` is what the engine tells other engines as its own, where its settings do not.
    """

    def __init__(
        self,
        settings: EngineSettings,
        *,
        registry: KvRegistry | None = None,
        on_crash: Callable[[], None] | None = None,
        address: str = "",
    ) -> None:
        self.settings = settings
        self.counters = Counters()
        self.clock = EngineClock()
        self.simulation = Simulation(settings, self.counters, self.clock)
        self.faults = FaultBoard()
        self.draining = False
        self.crashed = False
        self.registry = registry or KvRegistry()
        self.source = KvSource(settings, self._lease_expired)
        self.registry.add(self.source)
        self._on_crash = on_crash
        self._address = address
        self._exposition = Exposition(settings, self.counters)
        self._still = ""
        """The metrics of an engine that hangs."""
        self._headers = {"x-fake-engine": settings.name}
        self._routes: Mapping[tuple[str, str], Handler] = {
            ("GET", "/health"): self._health,
            ("GET", "/ping"): self._health,
            ("GET", "/metrics"): self._metrics,
            ("GET", "/version"): self._version,
            ("GET", "/v1/models"): self._models,
            ("POST", "/v1/chat/completions"): self._chat,
            ("POST", "/v1/completions"): self._completion,
            ("POST", "/tokenize"): self._tokenize,
            ("GET", "/fake/faults"): self._list_faults,
            ("POST", "/fake/faults"): self._set_faults,
            ("DELETE", "/fake/faults"): self._clear_faults,
        }

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        path = request.rel_url.raw_path
        route = self._routes.get((request.method, path))
        try:
            if self.crashed:
                raise BrokenOffError
            if route is None:
                known = any(path == other for _, other in self._routes)
                raise ApiError(405 if known else 404, "Method Not Allowed" if known else "Not Found", "NotFoundError")
            if self.settings.api_key and path.startswith("/v1"):
                self._authorize(request)
            found: web.StreamResponse = await route(request)
        except ApiError as refused:
            return self._json(refused.as_json(), refused.status, refused.headers)
        except BrokenOffError:
            if request.transport is not None:
                request.transport.abort()
            return web.Response()
        return found

    def set_faults(self, *orders: FaultOrder) -> None:
        """Replace the faults that are switched on; none ends a hang."""
        self.faults.replace(orders)
        hang = self.faults.first(Effect.HANG)
        if hang is None:
            self.clock.thaw()
            self.simulation.admit()
        elif self.simulation.running and not hang.after:
            self._hang()

    def metrics(self) -> str:
        """The text of a scrape."""
        return self._still if self.clock.frozen else self._exposition.text(self.simulation.gauges())

    async def drained(self) -> None:
        """Until no request is running or waiting."""
        await self.simulation.idle.wait()

    def crash(self) -> None:
        """Drop all connections from now on; `on_crash` ends the process where the engine has one."""
        self.crashed = True
        self.close()
        if self._on_crash is not None:
            self._on_crash()

    def close(self) -> None:
        """Leave the registry and drop what was kept for decode engines."""
        self.source.close()
        self.registry.remove(self.source)

    # Endpoints

    async def _health(self, request: web.BaseRequest) -> web.Response:
        slow = self.faults.first(Effect.SLOW_HEALTH)
        if slow is not None:
            await asyncio.sleep(slow.seconds)
        dead = self.faults.first(Effect.DEAD) is not None
        return web.Response(status=503 if dead else 200, headers=self._headers)

    async def _metrics(self, request: web.BaseRequest) -> web.Response:
        headers = {**self._headers, "Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=self.metrics().encode(), headers=headers)

    async def _version(self, request: web.BaseRequest) -> web.Response:
        return self._json({"version": self.settings.version})

    async def _models(self, request: web.BaseRequest) -> web.Response:
        settings = self.settings
        model = {
            "id": settings.served_name,
            "object": "model",
            "created": int(self.counters.born),
            "owned_by": "vllm",
            "root": settings.model,
            "parent": None,
            "max_model_len": settings.max_model_len,
        }
        models = [model]
        for order in self.faults.orders:
            models = order.row.models(models) if order.row.models else models
        return self._json({"object": "list", "data": models})

    async def _tokenize(self, request: web.BaseRequest) -> web.Response:
        body = parse_body(await _read(request))
        check_model(body, self.settings)
        if "messages" in body:
            count = chat_question(body, self.settings).prompt_tokens
            raw = render_chat(body["messages"], {})
        else:
            raw = str(body.get("prompt", "")).encode()
            count = text_tokens(raw)
        ids = token_ids(raw)[:count]
        ids += [0] * (count - len(ids))
        limit = self.settings.max_model_len
        return self._json({"count": count, "max_model_len": limit, "tokens": ids, "token_strs": None})

    async def _chat(self, request: web.BaseRequest) -> web.StreamResponse:
        return await self._answer(request, chat_question)

    async def _completion(self, request: web.BaseRequest) -> web.StreamResponse:
        return await self._answer(request, completion_question)

    async def _list_faults(self, request: web.BaseRequest) -> web.Response:
        return self._json({"faults": [order.as_json() for order in self.faults.orders]})

    async def _set_faults(self, request: web.BaseRequest) -> web.Response:
        body = parse_body(await _read(request))
        orders = body["faults"] if isinstance(body.get("faults"), list) else [body]
        self.set_faults(*(order_of(raw) for raw in orders))
        return await self._list_faults(request)

    async def _clear_faults(self, request: web.BaseRequest) -> web.Response:
        self.set_faults()
        return await self._list_faults(request)

    # Completions

    async def _answer(
        self, request: web.BaseRequest, parse: Callable[[Mapping[str, Any], EngineSettings], Question]
    ) -> web.StreamResponse:
        raw = await _read(request)
        striking = self.faults.striking()
        effects = {order.row.effect: order for order in striking}
        if Effect.CRASH in effects:
            self.crash()
            raise BrokenOffError
        if refusal := next((order.row.refuse for order in striking if order.row.refuse), None):
            raise refusal.with_traceback(None)  # one error object serves all refusals
        limit = self.settings.max_num_queued
        if self.draining:
            raise ApiError(503, "The server is shutting down.", "ServiceUnavailableError")
        if limit is not None and self.simulation.in_flight >= limit:
            self.counters.rejected += 1
            raise ApiError(503, "Too many requests are queued.", "ServiceUnavailableError")
        question = parse(parse_body(raw), self.settings)
        del raw
        answer = question.answer
        for order in striking:
            answer = order.row.answer(answer) if order.row.answer else answer
        answer = limited(answer, question.max_tokens, at_least=question.at_least, stop=question.stop)
        remote = await self._pull(question)
        turn = Turn(
            prompt_tokens=question.prompt_tokens,
            answer_tokens=answer.tokens,
            units=cache_units(question.continued(answer), self.settings.unit_tokens),
            remote_tokens=remote,
            long_prefill=effects[Effect.LONG_PREFILL].seconds if Effect.LONG_PREFILL in effects else 0.0,
        )
        return await self._run(request, question, answer, turn, striking)

    async def _run(
        self, request: web.BaseRequest, question: Question, answer: Answer, turn: Turn, striking: list[FaultOrder]
    ) -> web.StreamResponse:
        hang = self.faults.first(Effect.HANG)
        if hang is not None and hang in striking and not self.clock.frozen:
            # the hang begins once this request has its seat
            asyncio.get_running_loop().call_soon(self._hang)
            turn.long_prefill = max(turn.long_prefill, 0.001)
        finish = "abort"
        cut = any(order.row.effect is Effect.CUT for order in striking)
        try:
            async with self.simulation.turn(turn):
                if question.stream:
                    found = await self._stream(request, question, answer, turn, striking, cut=cut)
                else:
                    await self.simulation.generated(turn, answer.tokens)
                    if cut:
                        raise BrokenOffError
                    found = self._whole(question, answer, turn, striking)
            finish = "stop" if answer.finish == "tool_calls" else answer.finish
            return found
        finally:
            self.counters.finished[finish] += 1

    def _whole(self, question: Question, answer: Answer, turn: Turn, striking: list[FaultOrder]) -> web.Response:
        head = wire.Head.new(self.settings.served_name, chat=question.chat)
        body = wire.body(head, answer, self._usage(question, answer, turn), self._keep(question, answer, turn))
        for order in striking:
            body = order.row.body(body) if order.row.body else body
        return self._json(body)

    async def _stream(
        self,
        request: web.BaseRequest,
        question: Question,
        answer: Answer,
        turn: Turn,
        striking: list[FaultOrder],
        *,
        cut: bool,
    ) -> web.StreamResponse:
        """Write frames as their tokens become due, all that are due in one piece."""
        response = web.StreamResponse(headers={**self._headers, **SSE})
        await response.prepare(request)
        due, events = self._events(question, answer, turn, striking)
        sent, count = 0, len(events)
        while sent < count:
            await self.simulation.generated(turn, due[sent])
            available = self.simulation.available(turn)
            end = sent + 1
            while end < count and due[end] <= available:
                end += 1
            if cut and end >= count // 2:
                await response.write(b"".join(events[sent : count // 2]))
                raise BrokenOffError
            await response.write(b"".join(events[sent:end]))
            sent = end
        await response.write_eof()
        return response

    def _events(
        self, question: Question, answer: Answer, turn: Turn, striking: list[FaultOrder]
    ) -> tuple[list[int], list[bytes]]:
        """(tokens that have to be there, server-sent event), one for one."""
        head = wire.Head.new(self.settings.served_name, chat=question.chat)
        timed = wire.frames(head, answer, interval=self.settings.stream_interval)
        if question.include_usage:
            timed.append((answer.tokens, head.frame([], usage=self._usage(question, answer, turn))))
        due, frames = [at for at, _ in timed], [frame for _, frame in timed]
        for order in striking:
            frames = order.row.frames(frames) if order.row.frames else frames
        events = [*map(wire.event, frames), wire.DONE]
        for order in striking:
            events = order.row.events(events) if order.row.events else events
        due = (due + [answer.tokens] * len(events))[: len(events)]
        return due, events

    def _usage(self, question: Question, answer: Answer, turn: Turn) -> dict[str, Any]:
        cached = turn.cached_tokens if self.settings.prompt_tokens_details else None
        return wire.usage(question.prompt_tokens, answer, cached)

    async def _pull(self, question: Question) -> int:
        """Tokens of KV cache that another engine hands over for the question."""
        transfer = self.settings.transfer
        if transfer is None or not question.transfer.get("do_remote_prefill"):
            return 0
        try:
            return await self.registry.pull(question.transfer, self.settings)
        except TransferError as failed:
            self.counters.failed_transfers += 1
            if transfer.failure_policy == "recompute":
                return 0
            self.counters.finished["error"] += 1
            raise ApiError(500, f"KV load failure: {failed}", "InternalServerError") from None

    def _keep(self, question: Question, answer: Answer, turn: Turn) -> dict[str, Any] | None:
        """As in vLLM blocks are kept only for a request that ended at its limit, which a prefill request does."""
        transfer = self.settings.transfer
        wanted = bool(question.transfer.get("do_remote_decode"))
        if transfer is None or not wanted or answer.finish != "length":
            return None
        turn.kept = True
        host = self._address or transfer.host
        return self.source.keep(question.prompt_tokens, lambda: self.simulation.release(turn), host=host)

    def _lease_expired(self) -> None:
        self.counters.expired_transfers += 1

    def _hang(self) -> None:
        if not self.clock.frozen and self.faults.first(Effect.HANG) is not None:
            self._still = self._exposition.text(self.simulation.gauges())
            self.clock.freeze()

    def _authorize(self, request: web.BaseRequest) -> None:
        if request.headers.get("Authorization") != f"Bearer {self.settings.api_key}":
            raise ApiError(HTTPStatus.UNAUTHORIZED, "Unauthorized", "AuthenticationError")

    def _json(self, body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
        raw = json.dumps(body, separators=(",", ":")).encode()
        return web.Response(
            body=raw, status=status, headers={**self._headers, **(headers or {})}, content_type="application/json"
        )


async def _read(request: web.BaseRequest) -> bytes:
    """The body; a client that waits for leave to send it gets it."""
    if request.headers.get("Expect", "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0
    return await request.read()

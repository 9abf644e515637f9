"""Everything that can be made to go wrong with a fake engine, as a table.

A new way to answer wrongly is one row: a name in `Fault`, and the hook that spoils the answer, the frames of its
stream, the events on the wire, the body of an answer in one piece, or the list of models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from typing import Any

from tests.harness.engine.answers import Answer
from tests.harness.engine.errors import ApiError

Json = dict[str, Any]


class Fault(StrEnum):
    NO_MODEL = "no-model"
    COMPLETIONS_503 = "completions-503"
    RATE_LIMITED = "rate-limited"
    ENGINE_DEAD = "engine-dead"
    HANG = "hang"
    LONG_PREFILL = "long-prefill"
    SLOW_HEALTH = "slow-health"
    CRASH = "crash"
    CUT_STREAM = "cut-stream"
    WRONG_TEXT = "wrong-text"
    EMPTY_ANSWER = "empty-answer"


class Effect(Enum):
    """What a hook cannot do, because it is about the engine and not about an answer."""

    NONE = "none"
    DEAD = "dead"
    HANG = "hang"
    LONG_PREFILL = "long prefill"
    SLOW_HEALTH = "slow health"
    CRASH = "crash"
    CUT = "cut"


@dataclass(frozen=True)
class FaultRow:
    summary: str
    effect: Effect = Effect.NONE
    refuse: ApiError | None = None
    """Each completion is refused with it."""
    answer: Callable[[Answer], Answer] | None = None
    """Before tokens are counted and the limit is applied."""
    frames: Callable[[list[Json]], list[Json]] | None = None
    """The JSON objects of a stream, without [DONE]."""
    events: Callable[[list[bytes]], list[bytes]] | None = None
    """The server-sent events of a stream, [DONE] included."""
    body: Callable[[Json], Json] | None = None
    """The JSON object of an answer in one piece."""
    models: Callable[[list[Json]], list[Json]] | None = None


FAULTS: Mapping[Fault, FaultRow] = {
    Fault.NO_MODEL: FaultRow("healthy port, but /v1/models is empty", models=lambda _: []),
    Fault.COMPLETIONS_503: FaultRow(
        "the model is listed, completions answer 503",
        refuse=ApiError(503, "The engine is not ready for requests.", "ServiceUnavailableError"),
    ),
    Fault.RATE_LIMITED: FaultRow(
        "completions answer 429 with Retry-After",
        refuse=ApiError(429, "Too many requests.", "TooManyRequestsError", headers={"Retry-After": "1"}),
    ),
    Fault.ENGINE_DEAD: FaultRow(
        "/health answers 503 and completions 500",
        effect=Effect.DEAD,
        refuse=ApiError(500, "EngineCore encountered an issue.", "InternalServerError"),
    ),
    Fault.HANG: FaultRow(
        "requests never answer and no counter moves; it begins with a running request, or with the next", Effect.HANG
    ),
    Fault.LONG_PREFILL: FaultRow("a prefill takes `seconds`: KV usage rises, token counters stay", Effect.LONG_PREFILL),
    Fault.SLOW_HEALTH: FaultRow("/health answers after `seconds`", Effect.SLOW_HEALTH),
    Fault.CRASH: FaultRow("the process ends with the request after the first `after`", Effect.CRASH),
    Fault.CUT_STREAM: FaultRow("the connection breaks in the middle of an answer", Effect.CUT),
    Fault.WRONG_TEXT: FaultRow(
        "one token over and over", answer=lambda answer: replace(answer, reasoning="", content="!" * 64, calls=())
    ),
    Fault.EMPTY_ANSWER: FaultRow(
        "neither text nor reasoning", answer=lambda answer: replace(answer, reasoning="", content="", calls=())
    ),
}


@dataclass
class FaultOrder:
    """A fault that is switched on: from the request after the first `after`, for one request in `every`."""

    fault: Fault
    after: int = 0
    every: int = 1
    seconds: float = 0.0
    seen: int = field(default=0)
    """Completions since it was switched on."""

    @property
    def row(self) -> FaultRow:
        return FAULTS[self.fault]

    def strikes(self) -> bool:
        """Count a completion; whether the fault is about it."""
        self.seen += 1
        return self.seen > self.after and (self.seen - self.after - 1) % self.every == 0

    def as_json(self) -> Json:
        return {
            "fault": self.fault.value,
            "after": self.after,
            "every": self.every,
            "seconds": self.seconds,
            "seen": self.seen,
        }


def order_of(raw: Any) -> FaultOrder:
    """A fault as the control endpoint takes it: a name, or an object with `fault` and its numbers.

    Raises ApiError 400 for anything else.
    """
    fields: Json = {"fault": raw} if isinstance(raw, str) else dict(raw) if isinstance(raw, dict) else {}
    try:
        order = FaultOrder(
            Fault(fields.pop("fault", None)),
            int(fields.pop("after", 0)),
            int(fields.pop("every", 1)),
            float(fields.pop("seconds", 0.0)),
        )
    except (ValueError, TypeError) as wrong:
        raise ApiError(400, f"{wrong}; faults are {', '.join(Fault)}") from None
    if fields or order.every < 1:
        raise ApiError(400, "a fault has the fields fault, after, every (at least 1) and seconds")
    return order


@dataclass
class FaultBoard:
    """The faults of one engine that are switched on."""

    orders: list[FaultOrder] = field(default_factory=list)

    def replace(self, orders: Sequence[FaultOrder]) -> None:
        self.orders = list(orders)

    def first(self, effect: Effect) -> FaultOrder | None:
        return next((order for order in self.orders if order.row.effect is effect), None)

    def striking(self) -> list[FaultOrder]:
        """Count a completion and name the faults that are about it."""
        return [order for order in self.orders if order.strikes()]

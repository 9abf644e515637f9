"""A written resource, judged: its engines, or everything that is wrong with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kimi_k3_operator.api.base import Manifest
from kimi_k3_operator.api.parse import Deployment, parse_deployment
from kimi_k3_operator.api.refusal import Refusal
from kimi_k3_operator.plan.engine import Planner
from kimi_k3_operator.plan.snapshot import Child
from kimi_k3_operator.plan.unserved import unserved
from kimi_k3_operator.profiles.catalog import Catalog
from kimi_k3_operator.profiles.engine import EngineConfig
from kimi_k3_operator.profiles.flags import FlagTable


@dataclass(frozen=True)
class Accepted:
    """A resource that the operator would act upon. `engines` are in the order of its pools."""

    body: Manifest
    deployment: Deployment
    engines: tuple[EngineConfig, ...]

    @property
    def label(self) -> str:
        return f"{self.deployment.namespace}/{self.deployment.name}"

    @property
    def notes(self) -> tuple[str, ...]:
        """What to say beside the result, one line each."""
        paused = f"note: {self.label} is paused: the operator makes nothing until spec.paused is false"
        return (*((paused,) if self.deployment.spec.paused else ()), *self._warnings())

    def _warnings(self) -> tuple[str, ...]:
        return tuple(
            f"warning: {warning.id}: pool {engine.pool}: {_sentence(warning)}"
            for engine in self.engines
            for warning in engine.warnings
        )


@dataclass(frozen=True)
class Refused:
    label: str
    refusals: tuple[Refusal, ...]

    @property
    def lines(self) -> tuple[str, ...]:
        """`id: message`, one line each."""
        return tuple(f"{refusal.id}: {_sentence(refusal)}" for refusal in self.refusals)


def planner(directories: Iterable[Path]) -> Planner:
    """The planner with the packaged profiles and those in `directories`. Raises ProfileError."""
    return Planner(Catalog.load(*directories), FlagTable.load())


def judge(planner: Planner, body: Manifest, children: tuple[Child, ...] = ()) -> Accepted | Refused:
    """All refusals at once: of the form, else of what this release serves together with those of the engines."""
    parsed = parse_deployment(body)
    if not isinstance(parsed, Deployment):
        return Refused(_label(body), parsed)
    engines = planner.engines(parsed, children)
    refusals = {*unserved(parsed.spec), *(engine for engine in engines if isinstance(engine, Refusal))}
    if refusals:
        return Refused(_label(body), tuple(sorted(refusals)))
    return Accepted(body, parsed, tuple(engine for engine in engines if isinstance(engine, EngineConfig)))


def _label(body: Mapping[str, Any]) -> str:
    metadata = body.get("metadata")
    known: Mapping[str, Any] = metadata if isinstance(metadata, Mapping) else {}
    return f"{known.get('namespace') or 'default'}/{known.get('name', '')}"


def _sentence(refusal: Refusal) -> str:
    text = " ".join(str(refusal).split())
    return f"{text} ({refusal.link})" if refusal.link else text

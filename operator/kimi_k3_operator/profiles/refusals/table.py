"""The table itself: rows, how they are registered, and how an engine is judged by them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from packaging.specifiers import SpecifierSet

from kimi_k3_operator.api.refusal import Refusal
from kimi_k3_operator.profiles.engine import EngineConfig

Policy = Callable[[EngineConfig], str | None]
Severity = Literal["refusal", "warning"]


@dataclass(frozen=True)
class PolicyRow:
    id: str
    engines: SpecifierSet
    severity: Severity
    check: Policy
    fix: str
    link: str
    at: str = ""
    """Field below the pool that the sentence is about; empty for the pool itself."""

    def applies_to(self, version: str) -> bool:
        return self.engines.contains(version)

    @property
    def subject(self) -> str:
        """The module that holds the policy: `cache`, `speculation` and so on."""
        return self.check.__module__.rpartition(".")[2]


POLICIES: list[PolicyRow] = []


def refusal(
    identity: str, *, engines: str = "", fix: str = "", link: str = "", at: str = ""
) -> Callable[[Policy], Policy]:
    """Register a policy that refuses; `engines` is a version specifier, empty for all."""
    return _register(identity, "refusal", engines, fix, link, at)


def warning(
    identity: str, *, engines: str = "", fix: str = "", link: str = "", at: str = ""
) -> Callable[[Policy], Policy]:
    """Register a policy that only warns."""
    return _register(identity, "warning", engines, fix, link, at)


def _register(
    identity: str, severity: Severity, engines: str, fix: str, link: str, at: str
) -> Callable[[Policy], Policy]:
    def keep(policy: Policy) -> Policy:
        POLICIES.append(PolicyRow(identity, SpecifierSet(engines), severity, policy, fix, link, at))
        return policy

    return keep


def judge(engine: EngineConfig) -> tuple[tuple[Refusal, ...], tuple[Refusal, ...]]:
    """(refusals, warnings) of all policies for the engine's version."""
    found: dict[Severity, list[Refusal]] = {"refusal": [], "warning": []}
    for row in POLICIES:
        if row.applies_to(engine.engine_version) and (message := row.check(engine)) is not None:
            found[row.severity].append(Refusal(row.id, message, _field(row, engine), row.fix, row.link))
    return tuple(found["refusal"]), tuple(found["warning"])


def _field(row: PolicyRow, engine: EngineConfig) -> str:
    """The pool, or the field below it; an override only where the user made it."""
    kind, _, name = row.at.rpartition(".")
    profiles_own = kind in ("overrides.args", "overrides.env") and engine.origins.get(name) != "override"
    return f"spec.pools[{engine.pool}]" + (f".{row.at}" if row.at and not profiles_own else "")

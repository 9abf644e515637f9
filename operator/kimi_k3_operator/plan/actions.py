"""What a pass may do. Everything else it computes is only said."""

from __future__ import annotations

from dataclasses import dataclass

from kimi_k3_operator.api.base import Manifest
from kimi_k3_operator.inventory.model import Promise
from kimi_k3_operator.plan.targets import Target


@dataclass(frozen=True)
class Apply:
    """Server-side apply. `owned`: it exists and is ours, so our fields are taken back by force."""

    manifest: Manifest
    owned: bool


@dataclass(frozen=True)
class Create:
    """POST, for the one object with a field that must be set at creation and never applied again."""

    manifest: Manifest


@dataclass(frozen=True)
class Scale:
    """Set the replicas of a KimiK3Pool through its scale subresource."""

    name: str
    replicas: int


@dataclass(frozen=True)
class Delete:
    """Background deletion of exactly this object; with a resource version, only if it has not changed since."""

    kind: str
    name: str
    uid: str
    resource_version: str | None = None


@dataclass(frozen=True)
class Gate:
    """Set the readiness gate of exactly this pod."""

    pod: str
    uid: str
    open: bool
    reason: str
    message: str


Action = Apply | Create | Scale | Delete | Gate


@dataclass(frozen=True)
class Event:
    """A Kubernetes Event about the deployment."""

    type: str
    reason: str
    message: str


@dataclass(frozen=True)
class Plan:
    """Stages run one after the other, the actions of a stage side by side."""

    stages: tuple[tuple[Action, ...], ...]
    status: Manifest
    pool_statuses: dict[str, Manifest]
    events: tuple[Event, ...]
    promises: tuple[Promise, ...] = ()
    targets: tuple[Target, ...] = ()
    """Engines to probe."""

    @property
    def actions(self) -> tuple[Action, ...]:
        return tuple(action for stage in self.stages for action in stage)

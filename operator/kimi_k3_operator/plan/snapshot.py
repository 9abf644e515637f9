"""Everything one pass looks at. Immutable; whatever is not in here cannot influence a decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kimi_k3_operator.api import labels
from kimi_k3_operator.inventory.model import Inventory, PodView

_KEPT_METADATA = ("name", "namespace", "labels", "annotations", "ownerReferences")
WORKLOAD_KINDS = ("Deployment", "LeaderWorkerSet")


@dataclass(frozen=True)
class Child:
    """An object with our labels. `body` is the object without status and managed fields."""

    kind: str
    name: str
    uid: str
    resource_version: str
    terminating: bool
    owners: tuple[str, ...]
    body: Mapping[str, Any]
    status: Mapping[str, Any] = field(default_factory=dict)
    """Of a KimiK3Pool all of it, of a Deployment how many replicas are available."""

    def _label(self, key: str) -> str:
        return str((self.body["metadata"].get("labels") or {}).get(key, ""))

    def annotation(self, key: str) -> str:
        return str((self.body["metadata"].get("annotations") or {}).get(key, ""))

    @property
    def pool(self) -> str:
        return self._label(labels.POOL)

    @property
    def role(self) -> str:
        return self._label(labels.ROLE)

    @property
    def replica(self) -> str:
        return self._label(labels.REPLICA)

    @property
    def identity(self) -> tuple[str, str]:
        return self.kind, self.name


def parse_child(body: Mapping[str, Any], kind: str) -> Child:
    """The child that a live object is."""
    metadata = body["metadata"]
    kept = {
        key: metadata[key]
        for key in ("name", "namespace", "labels", "annotations", "ownerReferences")
        if key in metadata
    }
    compact = {key: value for key, value in body.items() if key not in ("metadata", "status", "managedFields")}
    return Child(
        kind=kind,
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        resource_version=str(metadata.get("resourceVersion", "")),
        terminating="deletionTimestamp" in metadata,
        owners=tuple(ref.get("uid", "") for ref in metadata.get("ownerReferences") or ()),
        body={**compact, "metadata": kept},
        status=_kept_status(kind, body.get("status") or {}),
    )


def _kept_status(kind: str, status: Mapping[str, Any]) -> Mapping[str, Any]:
    if kind == "KimiK3Pool":
        return status
    return {"availableReplicas": status.get("availableReplicas", 0)} if kind == "Deployment" else {}


@dataclass(frozen=True)
class Probe:
    """What the probes of one engine container have shown so far."""

    container: str
    passed: bool = False
    """It has answered rightly once, everything included. This stays so until the container is another."""
    wrong: int = 0
    """Wrong answers in a row, up to now."""
    frozen: bool = False
    """Its counters show requests that do not move."""
    reason: str = "NotProbedYet"
    words: str = "it has not been asked yet"
    """What the last probe showed, if it was not a right answer."""


@dataclass(frozen=True)
class Snapshot:
    body: Mapping[str, Any]
    """The KimiK3Deployment as stored."""
    children: tuple[Child, ...] = ()
    pods: tuple[PodView, ...] = ()
    """Pods of this deployment that are not finished."""
    inventory: Inventory = field(default_factory=Inventory)
    apis: frozenset[str] = frozenset()
    """Kinds, of those that may be missing, that the API server serves now."""
    planned_by: str = ""
    """Empty: this instance plans NVLink domains. Else who does."""
    now: str = ""
    """RFC 3339, UTC, whole seconds."""
    probes: Mapping[str, Probe] = field(default_factory=dict)
    """What probes have shown of each pod that serves HTTP, by UID."""
    conflicts: tuple[str, ...] = ()
    """Children that could not be made because an object of somebody else has their name, one sentence each."""
    open_placement: bool = False
    """No cluster is looked at: multi-node replicas are rendered without an NVLink domain. Never set by the operator."""

    @property
    def uid(self) -> str:
        return str(self.body["metadata"].get("uid", ""))

    @property
    def deleting(self) -> bool:
        return "deletionTimestamp" in self.body["metadata"]

    def owned(self) -> tuple[Child, ...]:
        """Children that are ours to change: of this very object, or left without an owner by an orphan deletion."""
        return tuple(child for child in self.children if self.uid in child.owners or not child.owners)

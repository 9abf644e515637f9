"""The end of a deployment: workloads first, their pods drain, and only then the ComputeDomain that the pods use."""

from __future__ import annotations

from dataclasses import dataclass

from kimi_k3_operator.plan.actions import Delete
from kimi_k3_operator.plan.snapshot import Snapshot

ORPHAN_FINALIZER = "orphan"


@dataclass(frozen=True)
class Teardown:
    """`deletions` to make now. `waits_for` says what is still there; empty: the finalizer can go."""

    deletions: tuple[Delete, ...]
    waits_for: str
    leftover_groups: bool = False
    """Pods remain though the LeaderWorkerSet API is gone: the StatefulSets it left behind must go as well."""


def teardown(snapshot: Snapshot) -> Teardown:
    """What to delete now. Only children whose owner references hold the deployment's very UID are touched.

    During an orphan deletion the garbage collector takes the owner references off, so nothing is left to delete then.
    """
    if ORPHAN_FINALIZER in (snapshot.body["metadata"].get("finalizers") or ()):
        return Teardown((), "the garbage collector, which makes the children ownerless")
    own = [child for child in snapshot.children if snapshot.uid in child.owners]
    domains = [child for child in own if child.kind == "ComputeDomain"]
    others = [child for child in own if child.kind != "ComputeDomain"]
    pods = snapshot.pods if own else ()
    due = others if others or pods else domains
    deletions = tuple(
        Delete(child.kind, child.name, child.uid, child.resource_version) for child in due if not child.terminating
    )
    if others or pods:
        leftover = bool(pods) and "LeaderWorkerSet" not in snapshot.apis
        return Teardown(deletions, f"{len(others)} children and {len(pods)} pods", leftover)
    return Teardown(deletions, "the ComputeDomain" if domains else "")

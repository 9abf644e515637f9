"""The manifests that the operator would make of a resource."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kimi_k3_operator.api import labels
from kimi_k3_operator.api.base import Manifest
from kimi_k3_operator.cli.cluster import Cluster
from kimi_k3_operator.cli.judged import Accepted
from kimi_k3_operator.cli.text import in_order
from kimi_k3_operator.inventory.model import Inventory
from kimi_k3_operator.plan.actions import Apply, Create, Plan
from kimi_k3_operator.plan.engine import Planner
from kimi_k3_operator.plan.snapshot import WORKLOAD_KINDS

OPEN = Cluster(Inventory())
"""No cluster: NVLink domains are left open."""


def rendered(planner: Planner, accepted: Accepted, cluster: Cluster) -> tuple[list[Manifest], list[str], Cluster]:
    """(manifests in the order in which the operator makes them, notes on what is left open or out, the cluster then).

    Owner references and whatever follows from a uid are left out.
    """
    name, namespace = accepted.deployment.name, accepted.deployment.namespace
    notes = []
    snapshot = cluster.snapshot(accepted.body, namespace, name)
    if cluster is OPEN:
        snapshot = replace(snapshot, open_placement=True)
        if any(engine.profile.hardware.multi_node for engine in accepted.engines):
            notes.append(
                f"warning: the NVLink domains of {accepted.label} are left open; name a cluster with --cluster"
            )
    plan = planner.plan(snapshot)
    manifests = [bare(manifest) for manifest in _manifests(plan)]
    notes += _left_out(accepted, plan, manifests)
    return manifests, notes, cluster if cluster is OPEN else cluster.with_promises(plan.promises)


def bare(manifest: Manifest) -> Manifest:
    """The manifest without its owner and the hash of what was applied."""
    metadata = {key: value for key, value in manifest["metadata"].items() if key != "ownerReferences"}
    annotations = {k: v for k, v in (metadata.pop("annotations", None) or {}).items() if k != labels.APPLIED_HASH}
    if annotations:
        metadata["annotations"] = annotations
    return in_order({**manifest, "metadata": metadata})


def _manifests(plan: Plan) -> Iterator[Manifest]:
    return (action.manifest for action in plan.actions if isinstance(action, Apply | Create))


def _left_out(accepted: Accepted, plan: Plan, manifests: list[Manifest]) -> Iterator[str]:
    """A note for each replica without a workload among the manifests."""
    made = {
        (manifest["metadata"].get("labels") or {}).get(labels.REPLICA)
        for manifest in manifests
        if manifest["kind"] in WORKLOAD_KINDS
    }
    for status in plan.pool_statuses.values():
        for entry in status.get("replicaStatuses") or ():
            if entry["name"] not in made:
                yield f"warning: {entry['name']} is not rendered: {entry.get('message', 'its revision is not known')}"

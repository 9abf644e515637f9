"""A cluster as a file: nodes, pods, LeaderWorkerSets and ComputeDomains, as `kubectl get -o yaml` prints them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kimi_k3_operator.api import labels
from kimi_k3_operator.api.base import Manifest
from kimi_k3_operator.cli.documents import KIND, InputError, named, read_objects
from kimi_k3_operator.inventory.model import Inventory, Promise
from kimi_k3_operator.inventory.parse import parse_snapshot
from kimi_k3_operator.plan.pool import GROUP_APIS
from kimi_k3_operator.plan.snapshot import Child, Snapshot, parse_child

_CHILD_KINDS = frozenset(
    {"ComputeDomain", "ControllerRevision", "Deployment", "KimiK3Pool", "LeaderWorkerSet", "PodDisruptionBudget",
     "Service", "ServiceAccount"}
)  # fmt: skip


@dataclass(frozen=True)
class Cluster:
    """`inventory` is what placement looks at, `objects` what may already belong to a deployment."""

    inventory: Inventory
    objects: tuple[Manifest, ...] = ()

    def children(self, namespace: str, deployment: str) -> tuple[Child, ...]:
        """What the operator has made for a deployment, as far as the file holds it."""
        return tuple(
            parse_child(_as_found(body), body["kind"]) for body in self.objects if _belongs(body, namespace, deployment)
        )

    def with_promises(self, promises: Iterable[Promise]) -> Cluster:
        """The same cluster after another deployment was planned in it."""
        return replace(self, inventory=self.inventory.with_promises(promises))

    def snapshot(self, body: Manifest, namespace: str, deployment: str) -> Snapshot:
        """What a pass over `body` would look at in this cluster, which has every API that the operator can use.

        A paused resource is looked at as if it went on: what would happen then is the question.
        """
        return Snapshot(
            body={**body, "spec": {**body["spec"], "paused": False}},
            children=self.children(namespace, deployment),
            pods=tuple(
                pod for pod in self.inventory.pods if (pod.namespace, pod.deployment) == (namespace, deployment)
            ),
            inventory=self.inventory,
            apis=frozenset(GROUP_APIS),
        )


def read_cluster(source: str) -> Cluster:
    """Raises InputError, also when the file holds no node."""
    objects = read_objects(source)
    for body in objects:
        try:
            parse_snapshot([body])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            metadata = body.get("metadata")
            name = metadata.get("name", "") if isinstance(metadata, Mapping) else ""
            raise InputError(
                f"{named(source)}: {body['kind']} {name or 'without a name'} is not well-formed"
            ) from error
    inventory = parse_snapshot(objects)
    if not inventory.nodes:
        raise InputError(f"{named(source)}: there is no Node in it")
    return Cluster(inventory, tuple(body for body in objects if body["kind"] in _CHILD_KINDS))


def _belongs(body: Manifest, namespace: str, deployment: str) -> bool:
    """By label and owner: what a StatefulSet or a Deployment of ours makes has our labels, but another owner."""
    metadata: Mapping[str, Any] = body["metadata"] if isinstance(body.get("metadata"), Mapping) else {}
    mine: Mapping[str, Any] = metadata.get("labels") or {}
    owners = metadata.get("ownerReferences") or ()
    return (
        metadata.get("namespace", "default") == namespace
        and mine.get(labels.MANAGED_BY) == labels.OPERATOR
        and mine.get(labels.DEPLOYMENT) == deployment
        and all(owner.get("kind") == KIND and owner.get("name") == deployment for owner in owners)
    )


def _as_found(body: Manifest) -> Manifest:
    """Without the owner and the hash of what was applied: both hold a uid, which the written resource has not yet."""
    metadata = {key: value for key, value in body["metadata"].items() if key != "ownerReferences"}
    annotations = metadata.get("annotations") or {}
    metadata["annotations"] = {key: value for key, value in annotations.items() if key != labels.APPLIED_HASH}
    return {**body, "metadata": metadata}

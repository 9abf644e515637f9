"""One workload per replica: a Deployment for single-node hardware, a LeaderWorkerSet for a pair of nodes."""

from __future__ import annotations

from typing import Any

from kimi_k3_operator.api import labels
from kimi_k3_operator.api.base import Manifest
from kimi_k3_operator.compile.replica import Replica
from kimi_k3_operator.compile.revision import Revision
from kimi_k3_operator.inventory.model import DomainPlacement


def workload(replica: Replica, revision: Revision, placement: DomainPlacement | None) -> Manifest:
    """The workload of `replica` made from `revision`; `placement` pins a multi-node one to its NVLink domain."""
    if revision.multi_node:
        return leader_worker_set(replica, revision, placement)
    return deployment(replica, revision)


def deployment(replica: Replica, revision: Revision) -> Manifest:
    """Recreate: there is one pod and its node is full, so the new one can only follow the old one."""
    key = replica.key
    mine = labels.replica_labels(key.deployment, key.pool, replica.name, key.role)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(replica, revision, replica.workload_name(multi_node=False)),
        "spec": {
            "replicas": 1,
            "revisionHistoryLimit": 0,
            "progressDeadlineSeconds": revision.progress_deadline_seconds,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": {labels.DEPLOYMENT: key.deployment, labels.REPLICA: replica.name}},
            "template": _pod(revision, revision.leader, mine, None),
        },
    }


def leader_worker_set(replica: Replica, revision: Revision, placement: DomainPlacement | None) -> Manifest:
    """One group of two pods: rank 0 serves HTTP, rank 1 is headless.

    One LeaderWorkerSet per replica, because a template cannot name another NVLink domain for each group. Every field
    that the LeaderWorkerSet webhook would fill in is given, so that the stored object equals the applied one.
    """
    key = replica.key
    mine = labels.replica_labels(key.deployment, key.pool, replica.name, key.role)
    metadata = _metadata(replica, revision, replica.workload_name(multi_node=True))
    if placement is not None:
        metadata["annotations"][labels.PLACEMENT] = f"{placement.label}={placement.value}"
    assert revision.worker is not None
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": metadata,
        "spec": {
            "replicas": 1,
            "startupPolicy": "LeaderCreated",
            "rolloutStrategy": {
                "type": "RollingUpdate",
                "rollingUpdateConfiguration": {"partition": 0, "maxUnavailable": 1, "maxSurge": 0},
            },
            "networkConfig": {"subdomainPolicy": "Shared"},
            "leaderWorkerTemplate": {
                "size": 2,
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": _pod(revision, revision.leader, mine, placement),
                "workerTemplate": _pod(revision, revision.worker, mine, placement),
            },
        },
    }


def _metadata(replica: Replica, revision: Revision, name: str) -> dict[str, Any]:
    key = replica.key
    return {
        "name": name,
        "namespace": key.namespace,
        "labels": labels.replica_labels(key.deployment, key.pool, replica.name, key.role),
        "annotations": {labels.REVISION: revision.name},
    }


def _pod(revision: Revision, template: Manifest, mine: dict[str, str], placement: DomainPlacement | None) -> Manifest:
    """The stored template with the labels of replica and revision, and its nodes narrowed to one domain."""
    spec = dict(template["spec"])
    if placement is not None:
        pinned = {"key": placement.label, "operator": "In", "values": [placement.value]}
        required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        terms = [{"matchExpressions": [*t["matchExpressions"], pinned]} for t in required["nodeSelectorTerms"]]
        affinity = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        spec["affinity"] = {"nodeAffinity": affinity}
    return {
        "metadata": {"labels": {**template["metadata"]["labels"], **mine, labels.REVISION: revision.label}},
        "spec": spec,
    }

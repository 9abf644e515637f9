"""Builders of the objects that a deployment or a pool has once."""

from __future__ import annotations

from kimi_k3_operator.api import labels, names
from kimi_k3_operator.api.base import API_VERSION, Manifest
from kimi_k3_operator.api.status import KimiK3PoolSpec
from kimi_k3_operator.compile.replica import PoolKey
from kimi_k3_operator.profiles.engine import HTTP_PORT


def service_account(namespace: str, deployment: str) -> Manifest:
    """The engines' identity: none. No token is mounted and nothing is bound to it."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {
            "name": names.engine_service_account(deployment),
            "namespace": namespace,
            "labels": labels.deployment_labels(deployment),
        },
        "automountServiceAccountToken": False,
    }


def pool_service(key: PoolKey) -> Manifest:
    """A Service over the pods of one pool that serve HTTP."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": names.pool_service(key.deployment, key.pool, key.role),
            "namespace": key.namespace,
            "labels": labels.pool_labels(key.deployment, key.pool, key.role),
        },
        "spec": {
            "type": "ClusterIP",
            "selector": serving_selector(key),
            "ports": [{"name": "http", "port": HTTP_PORT, "targetPort": "http", "protocol": "TCP"}],
        },
    }


def serving_selector(key: PoolKey) -> dict[str, str]:
    """Labels that only the pool's pods with HTTP carry."""
    return pool_selector(key) | {labels.SERVES_HTTP: "true"}


def pool_selector(key: PoolKey) -> dict[str, str]:
    """Labels that all pods of the pool carry, and no others."""
    selector = {labels.DEPLOYMENT: key.deployment, labels.POOL: key.pool}
    return selector | {labels.ROLE: key.role} if key.role else selector


def compute_domain(namespace: str, deployment: str) -> Manifest:
    """One NVLink plumbing domain for all groups of a deployment.

    numNodes 0: a pod starts as soon as its own node's IMEX daemon is ready, and the engine waits for its peers itself.
    """
    return {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomain",
        "metadata": {
            "name": names.compute_domain(deployment),
            "namespace": namespace,
            "labels": labels.deployment_labels(deployment),
        },
        "spec": {
            "numNodes": 0,
            "channel": {
                "allocationMode": "Single",
                "resourceClaimTemplate": {"name": names.channel_claim_template(deployment)},
            },
        },
    }


def pool_object(key: PoolKey, profile: str) -> Manifest:
    """The KimiK3Pool. `spec.replicas` is not part of it: it is set at creation and through /scale alone."""
    spec = KimiK3PoolSpec(deployment=key.deployment, pool=key.pool, role=key.role or None, profile=profile)
    return {
        "apiVersion": API_VERSION,
        "kind": "KimiK3Pool",
        "metadata": {
            "name": key.name,
            "namespace": key.namespace,
            "labels": labels.pool_labels(key.deployment, key.pool, key.role),
        },
        "spec": spec.wire(),
    }


def disruption_budget(key: PoolKey, *, pods: int) -> Manifest:
    """At least `pods` pods of the pool stay up in a drain.

    It counts all pods of all groups. The first eviction breaks one group, whose other pod is unready from then on and
    may go as well; a second whole group is protected. Broken pods never hold up a drain.
    """
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {
            "name": key.name,
            "namespace": key.namespace,
            "labels": labels.pool_labels(key.deployment, key.pool, key.role),
        },
        "spec": {
            "minAvailable": pods,
            "selector": {"matchLabels": pool_selector(key)},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }

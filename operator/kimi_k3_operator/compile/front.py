"""What entrance and endpoint picker have in common: programs without GPUs that answers stream through."""

from __future__ import annotations

from typing import Any

from kimi_k3_operator.api import labels
from kimi_k3_operator.api.base import GROUP, Manifest

COMPONENT = "app.kubernetes.io/component"
CONFIG_HASH = f"{GROUP}/config-hash"
DRAIN_MARGIN_SECONDS = 60
NONROOT = 65532
"""User and group of distroless images."""

CONTAINER_SECURITY: Manifest = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}


def front_labels(deployment: str, component: str) -> dict[str, str]:
    return labels.deployment_labels(deployment) | {COMPONENT: component}


def selector(own: dict[str, str]) -> dict[str, str]:
    """Of the labels of a component those that select its pods."""
    return {key: own[key] for key in (labels.DEPLOYMENT, COMPONENT)}


def pod_spec(name: str, container: Manifest, *, token: bool, drain_seconds: int, volumes: list[Manifest]) -> Manifest:
    """A pod under the restricted standard. An answer that is under way when it is told to stop has `drain_seconds`."""
    return {
        "automountServiceAccountToken": token,
        "containers": [container],
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": NONROOT,
            "runAsGroup": NONROOT,
            "fsGroup": NONROOT,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "serviceAccountName": name,
        "terminationGracePeriodSeconds": drain_seconds + DRAIN_MARGIN_SECONDS,
        "volumes": volumes,
    }


def front_deployment(metadata: Manifest, pod: Manifest, *, replicas: int, digest: str) -> Manifest:
    """A new pod is there before an old one goes; the number of pods is no part of what restarts them."""
    own = metadata["labels"]
    template: dict[str, Any] = {"metadata": {"labels": own, "annotations": {CONFIG_HASH: digest}}, "spec": pod}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata,
        "spec": {
            "replicas": replicas,
            "revisionHistoryLimit": 2,
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "selector": {"matchLabels": selector(own)},
            "template": template,
        },
    }

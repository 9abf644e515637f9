"""Labels and annotations of children. A user's labels are never copied: a GitOps tool would prune what carries them."""

from __future__ import annotations

from kimi_k3_operator.api.base import GROUP

MANAGED_BY = "app.kubernetes.io/managed-by"
NAME = "app.kubernetes.io/name"
OPERATOR = "kimi-k3-operator"
MANAGED_SELECTOR = f"{MANAGED_BY}={OPERATOR}"

DEPLOYMENT = f"{GROUP}/deployment"
POOL = f"{GROUP}/pool"
ROLE = f"{GROUP}/role"
REPLICA = f"{GROUP}/replica"
SERVES_HTTP = f"{GROUP}/serves-http"
"""On pods that answer HTTP alone: a leader or a single-node engine, never a headless worker."""

REVISION = f"{GROUP}/revision"
"""Annotation of a workload: name of the ControllerRevision its pod template came from. Label of a pod: its hash."""
APPLIED_HASH = f"{GROUP}/applied-hash"
"""Annotation of a child: hash of what the operator last applied."""
PLACEMENT = f"{GROUP}/nvlink-domain"
"""Annotation of a multi-node workload: `label=value` of the NVLink domain it is pinned to."""
VERIFIED = f"{GROUP}/verified"
"""Readiness gate of a pod that serves HTTP: true after its engine has answered rightly."""

FINALIZER = f"{GROUP}/teardown"


def deployment_labels(deployment: str) -> dict[str, str]:
    """Labels of every child of a deployment."""
    return {NAME: "kimi-k3", MANAGED_BY: OPERATOR, DEPLOYMENT: deployment}


def pool_labels(deployment: str, pool: str, role: str = "") -> dict[str, str]:
    labels = deployment_labels(deployment) | {POOL: pool}
    return labels | {ROLE: role} if role else labels


def replica_labels(deployment: str, pool: str, replica: str, role: str = "") -> dict[str, str]:
    return pool_labels(deployment, pool, role) | {REPLICA: replica}

"""Names of children. A pool name holds no dash and a role is a fixed word, so no two deployments can make one name.

Objects that exist once per deployment end in a fixed word (`-engine`), which keeps `k3` and `k3-engine` apart.
"""

from __future__ import annotations

import hashlib
from typing import Literal

MAX_DEPLOYMENT_NAME = 40
MAX_SERVICE_NAME = 63
MAX_LEADER_WORKER_SET_NAME = 39
"""LeaderWorkerSet names appear in StatefulSet pod names and in labels of at most 63 characters."""

Role = Literal["", "prefill", "decode"]


def pool_object(deployment: str, pool: str, role: Role = "") -> str:
    """Name of the KimiK3Pool of a pool and role, and of all objects that exist once per KimiK3Pool."""
    return f"{deployment}-{pool}-{role}" if role else f"{deployment}-{pool}"


def replica(deployment: str, pool: str, ordinal: int, role: Role = "") -> str:
    """Name of a replica: what users see, and the name of a single-node replica's Deployment."""
    return f"{pool_object(deployment, pool, role)}-{ordinal}"


def leader_worker_set(deployment: str, pool: str, ordinal: int, role: Role = "") -> str:
    """Name of a replica's LeaderWorkerSet: the replica's own, or a shortened one with six hash digits."""
    return _shortened(deployment, replica(deployment, pool, ordinal, role), MAX_LEADER_WORKER_SET_NAME)


def engine_service_account(deployment: str) -> str:
    return f"{deployment}-engine"


def pool_service(deployment: str, pool: str, role: Role = "") -> str:
    """Name of the Service over a pool's engines, shortened as that of a LeaderWorkerSet where it is too long."""
    return _shortened(deployment, f"{pool_object(deployment, pool, role)}-engines", MAX_SERVICE_NAME)


def compute_domain(deployment: str) -> str:
    return f"{deployment}-nvlink"


def channel_claim_template(deployment: str) -> str:
    return f"{deployment}-nvlink-channel"


def revision(pool_object_name: str, digest: str) -> str:
    return f"{pool_object_name}-{digest[:10]}"


def _shortened(deployment: str, name: str, most: int) -> str:
    """`name`, which begins with `deployment`, in at most `most` characters."""
    if len(name) <= most:
        return name
    digits = hashlib.sha256(deployment.encode()).hexdigest()[:6]
    tail = name.removeprefix(deployment)
    head = deployment[: most - len(tail) - len(digits) - 1].rstrip("-")
    return f"{head}-{digits}{tail}"

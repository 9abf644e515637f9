"""A replica: one whole 8-GPU engine, with a name, a workload and a placement of its own."""

from __future__ import annotations

from dataclasses import dataclass

from kimi_k3_operator.api import names
from kimi_k3_operator.api.names import Role


@dataclass(frozen=True, order=True)
class PoolKey:
    """The deployment, pool and role whose replicas are alike: one KimiK3Pool."""

    namespace: str
    deployment: str
    pool: str
    role: Role = ""

    @property
    def name(self) -> str:
        return names.pool_object(self.deployment, self.pool, self.role)


@dataclass(frozen=True, order=True)
class Replica:
    key: PoolKey
    ordinal: int

    @property
    def name(self) -> str:
        return names.replica(self.key.deployment, self.key.pool, self.ordinal, self.key.role)

    def workload_name(self, *, multi_node: bool) -> str:
        """Name of the Deployment or LeaderWorkerSet."""
        if not multi_node:
            return self.name
        return names.leader_worker_set(self.key.deployment, self.key.pool, self.ordinal, self.key.role)

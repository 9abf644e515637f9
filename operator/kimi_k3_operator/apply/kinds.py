"""The kinds that the operator touches, and what it may do with each. RBAC is generated from this table."""

from __future__ import annotations

from dataclasses import dataclass

from kimi_k3_operator.api.base import API_VERSION

WATCH = ("get", "list", "watch")
CHILD = (*WATCH, "create", "patch", "delete")


@dataclass(frozen=True)
class Kind:
    """`optional`: its API may be missing, and may come later."""

    kind: str
    api_version: str
    plural: str
    verbs: tuple[str, ...]
    namespaced: bool = True
    optional: bool = False

    @property
    def group(self) -> str:
        return self.api_version.rpartition("/")[0]

    @property
    def version(self) -> str:
        return self.api_version.rpartition("/")[2]

    @property
    def discovery_path(self) -> str:
        """URL path of the list of kinds that this API serves."""
        return f"/apis/{self.api_version}" if "/" in self.api_version else f"/api/{self.api_version}"

    def path(self, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
        """URL path of the collection, the object or its subresource."""
        scope = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        parts = [self.plural, *(part for part in (name, subresource) if part)]
        return f"{self.discovery_path}{scope}/{'/'.join(parts)}"


CHILD_KINDS = (
    Kind("KimiK3Pool", API_VERSION, "kimik3pools", CHILD),
    Kind("Deployment", "apps/v1", "deployments", CHILD),
    Kind("ControllerRevision", "apps/v1", "controllerrevisions", CHILD),
    Kind("Service", "v1", "services", CHILD),
    Kind("ServiceAccount", "v1", "serviceaccounts", CHILD),
    Kind("ConfigMap", "v1", "configmaps", CHILD),
    Kind("Role", "rbac.authorization.k8s.io/v1", "roles", CHILD),
    Kind("RoleBinding", "rbac.authorization.k8s.io/v1", "rolebindings", CHILD),
    Kind("PodDisruptionBudget", "policy/v1", "poddisruptionbudgets", CHILD),
    Kind("LeaderWorkerSet", "leaderworkerset.x-k8s.io/v1", "leaderworkersets", CHILD, optional=True),
    Kind("ComputeDomain", "resource.nvidia.com/v1beta1", "computedomains", CHILD, optional=True),
)
DEPLOYMENT = Kind("KimiK3Deployment", API_VERSION, "kimik3deployments", (*WATCH, "patch"))
LEASE = Kind("Lease", "coordination.k8s.io/v1", "leases", ("get", "create", "update"))
EVENT = Kind("Event", "v1", "events", ("create",))
POD = Kind("Pod", "v1", "pods", WATCH)
STATEFUL_SET = Kind("StatefulSet", "apps/v1", "statefulsets", ("list", "delete"))
KINDS = {kind.kind: kind for kind in (*CHILD_KINDS, DEPLOYMENT, LEASE, EVENT, POD, STATEFUL_SET)}

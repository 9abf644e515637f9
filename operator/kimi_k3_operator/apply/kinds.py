"""The kinds that the operator touches, and where the API server serves them."""

from __future__ import annotations

from dataclasses import dataclass

from kimi_k3_operator.api.base import API_VERSION


@dataclass(frozen=True)
class Kind:
    """`optional`: its API may be missing, and may come later."""

    kind: str
    api_version: str
    plural: str
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
    Kind("KimiK3Pool", API_VERSION, "kimik3pools"),
    Kind("Deployment", "apps/v1", "deployments"),
    Kind("ControllerRevision", "apps/v1", "controllerrevisions"),
    Kind("Service", "v1", "services"),
    Kind("ServiceAccount", "v1", "serviceaccounts"),
    Kind("ConfigMap", "v1", "configmaps"),
    Kind("Role", "rbac.authorization.k8s.io/v1", "roles"),
    Kind("RoleBinding", "rbac.authorization.k8s.io/v1", "rolebindings"),
    Kind("PodDisruptionBudget", "policy/v1", "poddisruptionbudgets"),
    Kind("LeaderWorkerSet", "leaderworkerset.x-k8s.io/v1", "leaderworkersets", optional=True),
    Kind("ComputeDomain", "resource.nvidia.com/v1beta1", "computedomains", optional=True),
)
DEPLOYMENT = Kind("KimiK3Deployment", API_VERSION, "kimik3deployments")
LEASE = Kind("Lease", "coordination.k8s.io/v1", "leases")
EVENT = Kind("Event", "v1", "events")
POD = Kind("Pod", "v1", "pods")
STATEFUL_SET = Kind("StatefulSet", "apps/v1", "statefulsets")
KINDS = {kind.kind: kind for kind in (*CHILD_KINDS, DEPLOYMENT, LEASE, EVENT, POD, STATEFUL_SET)}

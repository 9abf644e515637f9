"""What the control-plane tests do and ask: in words of the operator's users."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kimi_k3_operator.api.base import API_VERSION
from tests.harness.audit import AuditEntry
from tests.harness.kube import Kube, KubeError, Object, eventually
from tests.harness.operator_process import OperatorProcess
from tests.harness.practice import PracticeCluster

DEPLOYMENTS = "kimik3deployments"
POOLS = "kimik3pools"
LWS = "leaderworkerset.x-k8s.io/v1"
CHILD_COLLECTIONS = (
    (API_VERSION, POOLS),
    ("apps/v1", "deployments"),
    ("apps/v1", "controllerrevisions"),
    ("v1", "services"),
    ("v1", "serviceaccounts"),
    ("v1", "configmaps"),
    ("rbac.authorization.k8s.io/v1", "roles"),
    ("rbac.authorization.k8s.io/v1", "rolebindings"),
    ("policy/v1", "poddisruptionbudgets"),
    (LWS, "leaderworkersets"),
    ("resource.nvidia.com/v1beta1", "computedomains"),
)
OURS = "app.kubernetes.io/managed-by=kimi-k3-operator"


def pool(name: str, replicas: int | None = None, **fields: Any) -> Object:
    """A pool named like its profile unless told otherwise."""
    count = {} if replicas is None else {"replicas": replicas}
    return {"name": name, "profile": {"name": name}, **count, **fields}


def resource(name: str, namespace: str, *pools: Object, **spec: Any) -> Object:
    """A KimiK3Deployment with weights on the nodes."""
    return {
        "apiVersion": API_VERSION,
        "kind": "KimiK3Deployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"weights": {"hostPath": {"path": "/mnt/nvme/kimi-k3"}}, "pools": list(pools), **spec},
    }


@dataclass
class Site:
    """One namespace of a practice cluster."""

    cluster: PracticeCluster
    operator: OperatorProcess
    kube: Kube
    namespace: str

    def now(self) -> datetime:
        return self.cluster.control_plane.now()

    async def apply(self, name: str, *pools: Object, **spec: Any) -> Object:
        """What `kubectl apply --server-side` does."""
        body = resource(name, self.namespace, *pools, **spec)
        return await self.kube.apply(body, DEPLOYMENTS, manager="kubectl")

    async def get(self, name: str) -> Object:
        return await self.kube.get(API_VERSION, DEPLOYMENTS, name, self.namespace)

    async def condition(self, name: str, kind: str) -> Object:
        conditions = (await self.get(name)).get("status", {}).get("conditions") or []
        return next((c for c in conditions if c["type"] == kind), {"status": "", "reason": "", "message": ""})

    async def until(self, name: str, kind: str, status: str, *, reason: str = "", seconds: float = 60) -> Object:
        """Wait for a condition of the present generation; returns it."""

        async def seen() -> Object | None:
            body = await self.get(name)
            found = await self.condition(name, kind)
            fresh = body.get("status", {}).get("observedGeneration") == body["metadata"]["generation"]
            return found if fresh and found["status"] == status and reason in ("", found["reason"]) else None

        try:
            return dict(await eventually(seen, seconds=seconds, what=f"{kind}={status} {reason} of {name}"))
        except AssertionError as error:
            raise AssertionError(f"{error}; now {await self.condition(name, kind)}") from None

    async def ready(self, name: str, *, seconds: float = 90) -> Object:
        return await self.until(name, "Ready", "True", seconds=seconds)

    async def pods(self, name: str, pool_name: str | None = None) -> list[Object]:
        selector = f"kimik3.dev/deployment={name}" + (f",kimik3.dev/pool={pool_name}" if pool_name else "")
        return await self.kube.list("v1", "pods", self.namespace, selector)

    async def pod_uids(self, name: str) -> set[str]:
        return {pod["metadata"]["uid"] for pod in await self.pods(name)}

    async def replicas(self, name: str, pool_name: str) -> list[Object]:
        found = await self.kube.get(API_VERSION, POOLS, f"{name}-{pool_name}", self.namespace)
        return list(found.get("status", {}).get("replicaStatuses") or [])

    async def all_ready(self, name: str, pool_name: str, count: int) -> list[Object]:
        """The replica statuses of a pool, once there are `count` and all are Ready."""

        async def seen() -> list[Object] | None:
            found = await self.replicas(name, pool_name)
            return found if [entry["phase"] for entry in found] == ["Ready"] * count else None

        return list(await eventually(seen, what=f"{count} ready replicas in the status of pool {pool_name}"))

    async def domains(self, name: str) -> dict[str, set[str]]:
        """Replica to the NVLink domains of the nodes its pods are bound to."""
        nodes = {n["metadata"]["name"]: n for n in await self.kube.list("v1", "nodes")}
        found: dict[str, set[str]] = defaultdict(set)
        for pod in await self.pods(name):
            node = nodes.get(pod["spec"].get("nodeName", ""))
            if node is not None and "nvidia.com/gpu.clique" in node["metadata"]["labels"]:
                label = node["metadata"]["labels"]["nvidia.com/gpu.clique"]
                found[pod["metadata"]["labels"]["kimik3.dev/replica"]].add(label)
        return dict(found)

    async def children(self, selector: str = OURS) -> dict[tuple[str, str], Object]:
        """(plural, name) to object, of everything that the operator made.

        Other controllers copy our labels to what they make of our objects; those have owners of their own.
        """
        found: dict[tuple[str, str], Object] = {}
        for version, plural in CHILD_COLLECTIONS:
            try:
                items = await self.kube.list(version, plural, self.namespace, selector)
            except KubeError as error:
                if error.code != 404:
                    raise
                items = []
            found |= {(plural, item["metadata"]["name"]): item for item in items if _ours(item)}
        return found

    async def delete(self, name: str, propagation: str = "Background") -> None:
        await self.kube.delete(API_VERSION, DEPLOYMENTS, name, self.namespace, propagation=propagation)

    async def gone(self, name: str, *, seconds: float = 60) -> None:
        async def absent() -> bool:
            return await self.kube.find(API_VERSION, DEPLOYMENTS, name, self.namespace) is None

        await eventually(absent, seconds=seconds, what=f"{name} is gone")

    def writes(self, since: datetime) -> list[AuditEntry]:
        return self.operator.writes(since, self.namespace)

    async def one_more_pass(self) -> None:
        """Have every deployment looked at again, and wait until that is done and nothing is under way.

        A touched CRD of an optional API wakes all passes and changes nothing.
        """
        before = self.operator.metric("kimi_k3_operator_reconcile_total")
        touched = {"metadata": {"annotations": {"harness.kimik3.dev/touched": str(self.now())}}}
        crds = "customresourcedefinitions"
        await self.kube.patch("apiextensions.k8s.io/v1", crds, "leaderworkersets.leaderworkerset.x-k8s.io", touched)
        served = len(await self.kube.list(API_VERSION, DEPLOYMENTS))

        def passed() -> bool:
            return self.operator.metric("kimi_k3_operator_reconcile_total") >= before + served

        await eventually(passed, what="another pass of every deployment")

    async def settled(self, *, quiet: float = 2.0, seconds: float = 60) -> None:
        """Until the operator has written nothing here for `quiet` seconds."""
        loop = asyncio.get_running_loop()
        last = {"count": -1, "at": loop.time()}

        def still() -> bool:
            count = len(self.operator.writes(datetime.fromtimestamp(0, self.now().tzinfo), self.namespace))
            if count != last["count"]:
                last.update(count=count, at=loop.time())
            return loop.time() - last["at"] >= quiet

        await eventually(still, seconds=seconds, what="the operator is quiet", every=0.2)

    async def until_empty(self) -> None:
        async def empty() -> bool:
            pods = await self.kube.list("v1", "pods", selector=OURS)
            return not pods and not await self.kube.list(API_VERSION, DEPLOYMENTS)

        # After an outage of the API server the garbage collector takes its time.
        await eventually(empty, seconds=240, what="no replica of an earlier test is left")

    async def remove_all(self) -> None:
        """Everything of this namespace, also what an orphan deletion left."""
        for found in await self.kube.list(API_VERSION, DEPLOYMENTS, self.namespace):
            await self.delete(found["metadata"]["name"])
        for version, plural in CHILD_COLLECTIONS:
            try:
                left = await self.kube.list(version, plural, self.namespace, OURS)
            except KubeError:
                continue
            for item in left:
                if _ours(item):
                    await self.kube.delete(version, plural, item["metadata"]["name"], self.namespace)


def _ours(item: Object) -> bool:
    owners = item["metadata"].get("ownerReferences") or []
    return not owners or owners[0]["kind"] == "KimiK3Deployment"

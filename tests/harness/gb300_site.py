"""One namespace that uses one NVLink domain of a practice cluster; makes groups and domains as the operator would."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from tests.harness.computedomain import API_VERSION as COMPUTE_DOMAIN
from tests.harness.computedomain import CLIQUE
from tests.harness.kube import Kube, Object, eventually
from tests.harness.kwok import STARTUP_SECONDS
from tests.harness.leaderworkerset_admission import NAME
from tests.harness.leaderworkerset_objects import API_VERSION as LEADER_WORKER_SET


@dataclass(frozen=True)
class Site:
    """`clique` is the value of the clique label, `nodes` the names of its schedulable nodes."""

    kube: Kube
    namespace: str
    clique: str
    nodes: tuple[str, ...]

    @classmethod
    async def of(cls, kube: Kube, namespace: str) -> Self:
        """The site of the first clique of the cluster."""
        found = await kube.list("v1", "nodes", selector=CLIQUE)
        clique = min(node["metadata"]["labels"][CLIQUE] for node in found)
        mine = [node for node in found if node["metadata"]["labels"][CLIQUE] == clique]
        nodes = tuple(node["metadata"]["name"] for node in mine if not node["spec"].get("unschedulable"))
        return cls(kube, namespace, clique, nodes)

    async def create_domain(self, name: str) -> Object:
        """A ComputeDomain and its template `<name>-channel`; returns the domain once the template is there."""
        domain = await self.kube.create(
            {
                "apiVersion": COMPUTE_DOMAIN,
                "kind": "ComputeDomain",
                "metadata": {"name": name, "namespace": self.namespace},
                "spec": {"numNodes": 0, "channel": {"resourceClaimTemplate": {"name": f"{name}-channel"}}},
            }
        )
        await eventually(
            lambda: self.kube.find("resource.k8s.io/v1", "resourceclaimtemplates", f"{name}-channel", self.namespace),
            what="the channel's template",
        )
        return domain

    def pod_spec(self, *, channel: str = "", image: str = "engine:1", node: str = "") -> Object:
        """A pod that takes the four GPUs of a node of the clique, with the claim of a channel where one is named."""
        terms: Object = {"matchExpressions": [{"key": CLIQUE, "operator": "In", "values": [self.clique]}]}
        container: Object = {
            "name": "vllm", "image": image, "resources": {"limits": {"nvidia.com/gpu": "0" if node else "4"}},
        }  # fmt: skip
        spec: Object = {
            "affinity": {
                "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [terms]}}
            },
            "tolerations": [{"operator": "Exists"}],
            "containers": [container],
        }
        if node:
            spec["nodeSelector"] = {"kubernetes.io/hostname": node}
        if channel:
            spec["resourceClaims"] = [{"name": "imex", "resourceClaimTemplateName": channel}]
            container["resources"]["claims"] = [{"name": "imex"}]
        return spec

    async def create_pod(self, name: str, *, channel: str, node: str) -> Object:
        """A pod that wants a channel, and no GPU, on a certain node."""
        return await self.kube.create(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": self.namespace, "annotations": {STARTUP_SECONDS: "0.1"}},
                "spec": self.pod_spec(channel=channel, node=node),
            }
        )

    async def create_group(
        self,
        name: str,
        *,
        channel: str = "",
        image: str = "engine:1",
        subdomain: str = "Shared",
        rolling: Object | None = None,
    ) -> Object:
        """A LeaderWorkerSet of one group of two nodes, or a change of it."""
        template = {
            "metadata": {"annotations": {STARTUP_SECONDS: "0.1"}},
            "spec": self.pod_spec(channel=channel, image=image),
        }
        return await self.kube.apply(
            {
                "apiVersion": LEADER_WORKER_SET,
                "kind": "LeaderWorkerSet",
                "metadata": {"name": name, "namespace": self.namespace},
                "spec": {
                    "replicas": 1,
                    "startupPolicy": "LeaderCreated",
                    "rolloutStrategy": {
                        "type": "RollingUpdate",
                        "rollingUpdateConfiguration": rolling or {"partition": 0, "maxUnavailable": 1, "maxSurge": 0},
                    },
                    "networkConfig": {"subdomainPolicy": subdomain},
                    "leaderWorkerTemplate": {
                        "size": 2,
                        "restartPolicy": "RecreateGroupOnPodRestart",
                        "leaderTemplate": template,
                        "workerTemplate": template,
                    },
                },
            }
        )

    async def pods(self) -> dict[str, Object]:
        """The pods of all groups of the namespace, by name."""
        return {pod["metadata"]["name"]: pod for pod in await self.kube.list("v1", "pods", self.namespace, NAME)}

    async def node_label(self, node: str, key: str) -> str | None:
        found = await self.kube.get("v1", "nodes", node)
        value: str | None = found["metadata"]["labels"].get(key)
        return value

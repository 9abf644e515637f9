"""A cluster in memory that does with a plan what the API server, the scheduler and the kubelets would do in the end."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from kimi_k3_operator.api import labels
from kimi_k3_operator.api.base import Manifest
from kimi_k3_operator.inventory.model import Inventory, NodeView, PodView, Promise
from kimi_k3_operator.inventory.parse import parse_pod, parse_promise
from kimi_k3_operator.plan.actions import Action, Apply, Create, Delete, Plan, Scale
from kimi_k3_operator.plan.engine import Planner
from kimi_k3_operator.plan.snapshot import Child, Snapshot, parse_child
from tests.factories import GROUP_APIS, NAMESPACE, NOW, cluster, planner

Key = tuple[str, str]


class Scene:
    """One deployment and its cluster. Nothing happens by itself: a test calls `step`, `schedule` and `ready`."""

    def __init__(
        self,
        body: Manifest,
        *parts: Inventory | NodeView,
        apis: frozenset[str] = GROUP_APIS,
        planner: Planner | None = None,
    ) -> None:
        self.body = copy.deepcopy(body)
        self.world = cluster(*parts)
        self.apis = apis
        self.objects: dict[Key, Manifest] = {}
        self.pods: dict[str, Manifest] = {}
        self.planned_by = ""
        self.foreign_promises: tuple[Promise, ...] = ()
        self._planner = planner or _default()
        self._clock = 0

    # What a pass sees

    def children(self) -> tuple[Child, ...]:
        return tuple(parse_child(body, kind) for (kind, _), body in self.objects.items())

    def pod_views(self) -> tuple[PodView, ...]:
        return tuple(view for body in self.pods.values() if (view := parse_pod(body)) is not None)

    def snapshot(self, shuffle: int | None = None) -> Snapshot:
        """The world as it is; with a seed, everything in it in another order."""
        nodes, pods, children = list(self.world.nodes.values()), list(self.pod_views()), list(self.children())
        if shuffle is not None:
            for things in (nodes, pods, children):
                random.Random(shuffle).shuffle(things)  # type: ignore[arg-type]
        promises = (parse_promise(body) for (kind, _), body in self.objects.items() if kind == "LeaderWorkerSet")
        return Snapshot(
            body=self.body,
            children=tuple(children),
            pods=tuple(pods),
            inventory=Inventory(
                {view.name: view for view in nodes},
                (*self.world.pods, *pods),
                (*self.foreign_promises, *(p for p in promises if p is not None)),
                self.world.compute_domains,
            ),
            apis=self.apis,
            planned_by=self.planned_by,
            now=NOW,
        )

    def plan(self) -> Plan:
        return self._planner.plan(self.snapshot())

    # What happens

    def step(self) -> Plan:
        """One pass, carried out; pods of deleted workloads go at once."""
        plan = self.plan()
        for action in plan.actions:
            self._carry_out(action)
        self.body["status"] = plan.status
        for name, status in plan.pool_statuses.items():
            if ("KimiK3Pool", name) in self.objects:
                self.objects["KimiK3Pool", name]["status"] = status
        return plan

    def settle(self, *, healthy: Callable[[str], bool] = lambda replica: True, most: int = 60) -> list[Plan]:
        """Passes, with pods scheduled and made ready between them, until one changes nothing."""
        plans = []
        for _ in range(most):
            plans.append(self.step())
            moved = self.schedule()
            if not plans[-1].actions and not moved:
                return plans
            self.ready(*(name for name in self.replicas() if healthy(name)))
        raise AssertionError(f"{len(plans)} passes and no end: {plans[-1].actions}")

    def schedule(self) -> bool:
        """Each workload gets the pods of its template, bound where the template allows; old ones go at once."""
        before = copy.deepcopy(self.pods)
        wanted: dict[str, tuple[Manifest, str]] = {}
        for (kind, name), body in self.objects.items():
            if kind == "Deployment" and labels.REPLICA in body["metadata"]["labels"]:
                wanted[f"{name}-x"] = body["spec"]["template"], name
            elif kind == "LeaderWorkerSet":
                group = body["spec"]["leaderWorkerTemplate"]
                wanted[f"{name}-0"] = group["leaderTemplate"], name
                wanted[f"{name}-0-1"] = group["workerTemplate"], name
        for name, pod in list(self.pods.items()):
            if name not in wanted or _revision(pod) != _revision(wanted[name][0]):
                del self.pods[name]
        for name in sorted(set(wanted) - set(self.pods)):
            self.pods[name] = self._new_pod(name, wanted[name][0])
        for pod in self.pods.values():
            if "nodeName" not in pod["spec"]:
                self._bind(pod)
        return self.pods != before

    def ready(self, *replicas: str, value: bool = True) -> None:
        """Mark the bound pods of these replicas; of all, if none is named."""
        for pod in self.pods.values():
            named = not replicas or pod["metadata"]["labels"][labels.REPLICA] in replicas
            if named and "nodeName" in pod["spec"]:
                pod["status"]["conditions"] = [{"type": "Ready", "status": "True" if value else "False"}]

    def edit(self, **spec: Any) -> None:
        """The user changes fields of the spec."""
        self.body["spec"] = {**self.body["spec"], **spec}
        self.body["metadata"]["generation"] += 1

    def delete(self, kind: str, name: str) -> None:
        """Somebody deletes a child; its pods stay until `schedule`."""
        del self.objects[kind, name]

    # What there is

    def replicas(self) -> tuple[str, ...]:
        """Names of the replicas that have a workload, in order."""
        found = {body["metadata"]["labels"].get(labels.REPLICA) for body in self.objects.values()}
        return tuple(sorted(filter(None, found)))

    def revisions(self) -> dict[str, str]:
        """Replica to the name of the revision of its workload."""
        return {
            body["metadata"]["labels"][labels.REPLICA]: body["metadata"]["annotations"][labels.REVISION]
            for (kind, _), body in self.objects.items()
            if kind in ("Deployment", "LeaderWorkerSet")
        }

    def workload_versions(self) -> dict[str, str]:
        """Resource version of each workload: what does not change was not written."""
        return {
            name: body["metadata"]["resourceVersion"]
            for (kind, name), body in self.objects.items()
            if kind in ("Deployment", "LeaderWorkerSet")
        }

    # Inside

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, Delete):
            self.objects.pop((action.kind, action.name), None)
        elif isinstance(action, Scale):
            self.objects["KimiK3Pool", action.name]["spec"]["replicas"] = action.replicas
        else:
            self._store(action)

    def _store(self, action: Apply | Create) -> None:
        self._clock += 1
        stored = copy.deepcopy(action.manifest)
        key = stored["kind"], stored["metadata"]["name"]
        live = self.objects.get(key)
        assert live is None or isinstance(action, Apply), f"{key} exists"
        if live is not None and key[0] == "KimiK3Pool" and "replicas" in live["spec"]:
            stored["spec"]["replicas"] = live["spec"]["replicas"]
        metadata = {"uid": f"uid-{self._clock}", "creationTimestamp": NOW}
        if live is not None:
            metadata = {name: live["metadata"][name] for name in metadata}
            stored |= {"status": live["status"]} if "status" in live else {}
        stored["metadata"] |= metadata | {"resourceVersion": str(self._clock)}
        self.objects[key] = stored

    def _new_pod(self, name: str, template: Manifest) -> Manifest:
        metadata = {"name": name, "namespace": NAMESPACE, "uid": name, "labels": dict(template["metadata"]["labels"])}
        spec = copy.deepcopy(template["spec"])
        return {"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}

    def _bind(self, pod: Manifest) -> None:
        taken = {view.node for view in (*self.world.pods, *self.pod_views()) if view.node}
        fitting = (n for n, view in sorted(self.world.nodes.items()) if n not in taken and _allows(pod["spec"], view))
        node = next(fitting, None)
        if node is None:
            unbound = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node fits"}
            pod["status"]["conditions"] = [unbound]
        else:
            pod["spec"]["nodeName"] = node
            pod["status"] = {"phase": "Running"}


def _default() -> Planner:
    return planner()


def _revision(pod: Mapping[str, Any]) -> str:
    return str(pod["metadata"]["labels"][labels.REVISION])


def _allows(spec: Mapping[str, Any], node: NodeView) -> bool:
    """The node is open and has the labels that the pod's selector and affinity name."""
    terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    fits = any(all(_holds(e, node.labels) for e in term["matchExpressions"]) for term in terms)
    chosen = all(node.labels.get(key) == value for key, value in spec["nodeSelector"].items())
    return fits and chosen and node.ready and not node.unschedulable


def _holds(expression: Mapping[str, Any], marks: Mapping[str, str]) -> bool:
    if expression["operator"] == "Exists":
        return expression["key"] in marks
    return marks.get(expression["key"]) in expression["values"]


def with_nodes(scene: Scene, *names: str, **state: Any) -> None:
    """Change the state of some nodes of a scene."""
    nodes = {n: replace(v, **state) if n in names else v for n, v in scene.world.nodes.items()}
    scene.world = replace(scene.world, nodes=nodes)


def kinds(actions: Iterable[Action]) -> list[tuple[str, str]]:
    """(action, kind) of each action, in order."""
    found = []
    for action in actions:
        kind = action.kind if isinstance(action, Delete) else "KimiK3Pool"
        if isinstance(action, Apply | Create):
            kind = action.manifest["kind"]
        found.append((type(action).__name__, kind))
    return found

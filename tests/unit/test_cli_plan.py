"""What `kimi-k3 plan` and `render --cluster` make of a cluster in a file."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from kimi_k3_operator.api import labels
from kimi_k3_operator.cli.main import app

CLIQUE = "nvidia.com/gpu.clique"
Object = dict[str, Any]


def node(name: str, *, clique: str = "", cordoned: bool = False, ready: bool = True) -> Object:
    """A GB300 node of a clique, or a B300 node."""
    product, gpus, architecture = ("NVIDIA-GB300", 4, "arm64") if clique else ("NVIDIA-B300-SXM6-AC", 8, "amd64")
    marks = {"kubernetes.io/arch": architecture, "nvidia.com/gpu.product": product}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": marks | ({CLIQUE: clique} if clique else {})},
        "spec": {"unschedulable": True} if cordoned else {},
        "status": {
            "allocatable": {"nvidia.com/gpu": str(gpus)},
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }


def rack(clique: str, nodes: int) -> list[Object]:
    return [node(f"{clique}-{index}", clique=clique) for index in range(nodes)]


def gpu_pod(on: str) -> Object:
    container = {"name": "train", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    spec = {"nodeName": on, "containers": [container]}
    return {"kind": "Pod", "metadata": {"name": f"train-{on}", "namespace": "ml"}, "spec": spec, "status": {}}


def group(replica: str, clique: str, *, deployment: str = "k3", namespace: str = "default") -> Object:
    """The LeaderWorkerSet of a GB300 replica that was placed before."""
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {
            "name": replica,
            "namespace": namespace,
            "labels": labels.replica_labels(deployment, replica.split("-")[1], replica),
            "annotations": {labels.PLACEMENT: f"{CLIQUE}={clique}", labels.REVISION: f"{deployment}-gb300-0123456789"},
        },
        "spec": {"replicas": 1, "leaderWorkerTemplate": {"size": 2}},
    }


def resource(name: str = "k3", **pools: int) -> Object:
    """A KimiK3Deployment with a pool for each profile and number of replicas."""
    return {
        "apiVersion": "kimik3.dev/v1alpha1",
        "kind": "KimiK3Deployment",
        "metadata": {"name": name},
        "spec": {
            "weights": {"hostPath": {"path": "/mnt/kimi-k3"}},
            "pools": [{"name": p, "profile": {"name": p}, "replicas": count} for p, count in pools.items()],
        },
    }


class Folder:
    """Runs commands on resources and cluster objects that are written to files first."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def run(self, command: str, resources: Iterable[Object], cluster: Iterable[Object], *options: str) -> Result:
        given, snapshot = self.path / "k3.yaml", self.path / "cluster.yaml"
        given.write_text(yaml.safe_dump_all(list(resources)))
        snapshot.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(cluster)}))
        result = CliRunner().invoke(app, [command, "-f", str(given), "--cluster", str(snapshot), *options])
        assert result.exit_code == 0, result.output
        return result

    def places(self, resources: Iterable[Object], cluster: Iterable[Object]) -> dict[str, str]:
        """Replica to its place, or to `none: reason`."""
        found = json.loads(self.run("plan", resources, cluster, "-o", "json").stdout)["replicas"]
        return {r["replica"]: r.get("place") or f"none: {r['reason']}" for r in found}

    def capacity(self, resources: Iterable[Object], cluster: Iterable[Object]) -> dict[str, tuple[int, int, int]]:
        """NVLink domain or hardware to (nodes, free, left)."""
        found = json.loads(self.run("plan", resources, cluster, "-o", "json").stdout)["capacity"]
        return {c.get("domain", c["hardware"]): (c["nodes"], c["free"], c["left"]) for c in found}


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_groups_go_where_they_fit_best_and_the_rest_says_why_not(folder: Folder) -> None:
    cluster = [*rack("a", 5), *rack("b", 2)]
    assert folder.places([resource(gb300=4)], cluster) == {
        "k3-gb300-0": "domain b",
        "k3-gb300-1": "domain a",
        "k3-gb300-2": "domain a",
        "k3-gb300-3": "none: no NVLink domain has 2 free nodes (a: 1, b: 0)",
    }
    assert folder.capacity([resource(gb300=4)], cluster) == {"a": (5, 5, 1), "b": (2, 2, 0)}


def test_each_single_node_replica_takes_one_free_node_away(folder: Folder) -> None:
    cluster = [node("n0"), node("n1"), node("n2", cordoned=True), node("n3"), gpu_pod("n3"), node("n4", ready=False)]
    reason = "no free node (GPUs in use: 1, cordoned: 1, not ready: 1, taken by other replicas: 2)"
    assert folder.places([resource(b300=3)], cluster) == {
        "k3-b300-0": "any of 2 free nodes",
        "k3-b300-1": "node n1",
        "k3-b300-2": f"none: {reason}",
    }
    assert folder.capacity([resource(b300=3)], cluster) == {"b300": (5, 2, 0)}


def test_hardware_that_the_cluster_has_not(folder: Folder) -> None:
    assert folder.places([resource(b300=1, gb300=1)], [*rack("a", 0), node("n0")]) == {
        "k3-b300-0": "node n0",
        "k3-gb300-0": "none: no node of the cluster fits profile gb300",
    }
    assert folder.places([resource(b300=1)], rack("a", 2)) == {
        "k3-b300-0": "none: no node of the cluster is 8 x NVIDIA B300, one node"
    }


def test_a_group_that_is_there_stays_where_it_is(folder: Folder) -> None:
    cluster = [*rack("a", 4), *rack("b", 2), group("k3-gb300-0", "a")]
    places = folder.places([resource(gb300=2)], cluster)
    assert places == {"k3-gb300-0": "domain a", "k3-gb300-1": "domain a"}


def test_a_paused_resource_is_planned_as_if_it_went_on(folder: Folder) -> None:
    going = resource(gb300=1)
    paused = {**going, "spec": {**going["spec"], "paused": True}}
    result = folder.run("plan", [paused], rack("a", 2))
    assert result.stdout == folder.run("plan", [going], rack("a", 2)).stdout
    assert result.stderr == "note: default/k3 is paused: the operator makes nothing until spec.paused is false\n"


def test_surplus_and_pending_replicas_say_what_becomes_of_them(folder: Folder) -> None:
    cluster = [*rack("a", 4), group("k3-gb300-0", "a"), group("k3-gb300-1", "a")]
    found = json.loads(folder.run("plan", [resource(gb300=1)], cluster, "-o", "json").stdout)["replicas"]
    assert [(r["replica"], r["place"], r["reason"]) for r in found] == [
        ("k3-gb300-0", "domain a", "its pods are being made and bound"),
        ("k3-gb300-1", "domain a", "it is being given up; running requests are answered first"),
    ]


def test_the_promises_of_other_deployments_count_as_used(folder: Folder) -> None:
    cluster = [*rack("a", 2), *rack("b", 4), group("other-gb300-0", "a", deployment="other", namespace="elsewhere")]
    assert folder.places([resource(gb300=1)], cluster) == {"k3-gb300-0": "domain b"}
    assert folder.capacity([resource(gb300=1)], cluster) == {"a": (2, 0, 0), "b": (4, 4, 2)}


def test_two_resources_of_one_file_share_the_cluster(folder: Folder) -> None:
    resources = [resource("one", b300=1, gb300=1), resource("two", b300=1, gb300=1)]
    assert folder.places(resources, [*rack("a", 2), node("n0")]) == {
        "one-b300-0": "node n0",
        "one-gb300-0": "domain a",
        "two-b300-0": "none: no free node (taken by other replicas: 1)",
        "two-gb300-0": "none: no NVLink domain has 2 free nodes (a: 0)",
    }


def test_the_table_is_plain_text_where_there_is_no_terminal(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    result = folder.run("plan", [resource(gb300=1, b300=1)], rack("a", 2))
    assert result.stdout == (
        "REPLICA      PROFILE   HARDWARE                                PLACE      REASON\n"
        "k3-gb300-0   gb300/1   2 x 4 NVIDIA GB300, one NVLink domain   domain a\n"
        "k3-b300-0    b300/1    8 x NVIDIA B300, one node               none       no node of the cluster is "
        "8 x NVIDIA B300, one node\n"
        "\n"
        "HARDWARE   NVLINK DOMAIN   NODES   FREE   LEFT\n"
        "b300       -               0       0      0\n"
        "gb300      a               2       2      0\n"
    )


def test_a_node_list_of_the_api_server_and_bare_documents_read_alike(folder: Folder, tmp_path: Path) -> None:
    items = [{key: value for key, value in found.items() if key != "kind"} for found in rack("a", 2)]
    listed = tmp_path / "list.json"
    listed.write_text(json.dumps({"apiVersion": "v1", "kind": "NodeList", "items": items}))
    bare = tmp_path / "bare.yaml"
    bare.write_text(yaml.safe_dump_all(rack("a", 2)))
    given = tmp_path / "given.json"
    given.write_text(json.dumps(resource(gb300=1)))
    for snapshot in (listed, bare):
        result = CliRunner().invoke(app, ["plan", "-f", str(given), "--cluster", str(snapshot)])
        assert "domain a" in result.stdout


def test_render_with_a_cluster_holds_the_planned_domains(folder: Folder) -> None:
    result = folder.run("render", [resource(gb300=2)], [*rack("a", 2), *rack("b", 1)])
    groups = [o for o in yaml.safe_load_all(result.stdout) if o["kind"] == "LeaderWorkerSet"]
    assert [g["metadata"]["annotations"][labels.PLACEMENT] for g in groups] == [f"{CLIQUE}=a"]
    template = groups[0]["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    affinity = template["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    pinned = {"key": CLIQUE, "operator": "In", "values": ["a"]}
    assert all(pinned in term["matchExpressions"] for term in affinity["nodeSelectorTerms"])
    sentence = "no NVLink domain has 2 free nodes (b: 1, a: 0)"
    assert result.stderr == f"warning: k3-gb300-1 is not rendered: {sentence}\n"


def test_render_keeps_a_group_that_is_there_in_its_domain(folder: Folder) -> None:
    result = folder.run("render", [resource(gb300=1)], [*rack("a", 4), *rack("b", 2), group("k3-gb300-0", "a")])
    groups = [o for o in yaml.safe_load_all(result.stdout) if o["kind"] == "LeaderWorkerSet"]
    assert [g["metadata"]["annotations"][labels.PLACEMENT] for g in groups] == [f"{CLIQUE}=a"]

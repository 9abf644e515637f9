"""What a node file may say."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.harness.node_files import SITES, NodeFileError, expand, read_nodes


def test_the_two_sites_have_the_nodes_that_their_comments_promise():
    digitalocean, coreweave = (read_nodes(path) for path in SITES)
    marks = [node["metadata"]["labels"] for node in digitalocean]
    products = [m.get("nvidia.com/gpu.product") or ("AMD" if "amd.com/gpu.family" in m else "none") for m in marks]
    assert products == ["NVIDIA-B300-SXM6-AC"] * 4 + ["AMD"] * 4 + ["none"] * 2
    cliques = [node["metadata"]["labels"]["nvidia.com/gpu.clique"] for node in coreweave]
    assert [cliques.count(clique) for clique in dict.fromkeys(cliques)] == [18, 18]
    cordoned = [node["metadata"]["name"] for node in coreweave if node["spec"].get("unschedulable")]
    assert cordoned == ["cw-gb300-a-16", "cw-gb300-a-17", "cw-gb300-b-16", "cw-gb300-b-17"]
    assert {node["status"]["allocatable"]["nvidia.com/gpu"] for node in coreweave} == {"4"}
    assert {node["metadata"]["labels"]["kubernetes.io/arch"] for node in coreweave} == {"arm64"}


def test_a_node_group_becomes_nodes():
    group = {
        "kind": "NodeGroup",
        "name": "gpu-{index:02}",
        "count": 2,
        "labels": {"slot": "s{index}"},
        "capacity": {"nvidia.com/gpu": 8},
        "unschedulable": [1],
    }
    first, second = expand(group)
    assert first["metadata"]["name"] == "gpu-00"
    assert first["metadata"]["labels"]["kubernetes.io/hostname"] == "gpu-00"
    assert first["metadata"]["labels"]["kubernetes.io/arch"] == "amd64"
    assert first["status"] == {"capacity": {"nvidia.com/gpu": "8"}, "allocatable": {"nvidia.com/gpu": "8"}}
    assert second["metadata"]["labels"]["slot"] == "s1"
    assert [node["spec"].get("unschedulable") for node in (first, second)] == [None, True]


def test_nodes_of_a_real_cluster_are_taken_without_what_belongs_to_it(tmp_path: Path):
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "a", "uid": "x", "resourceVersion": "7", "labels": {"kubernetes.io/arch": "arm64"}},
        "spec": {
            "podCIDR": "10.1.0.0/24",
            "taints": [
                {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"},
                {"key": "gpu", "effect": "NoSchedule"},
            ],
        },
        "status": {"allocatable": {"cpu": "1"}, "conditions": [{"type": "Ready", "status": "Unknown"}]},
    }
    for wrapped in (node, {"apiVersion": "v1", "kind": "List", "items": [node]}, {"kind": "NodeList", "items": [node]}):
        path = tmp_path / "nodes.yaml"
        path.write_text(yaml.safe_dump(wrapped))
        (read,) = read_nodes(path)
        assert read["metadata"] == {
            "name": "a",
            "labels": {"kubernetes.io/hostname": "a", "kubernetes.io/os": "linux", "kubernetes.io/arch": "arm64"},
            "annotations": {"kwok.x-k8s.io/node": "fake"},
        }
        assert read["spec"] == {"taints": [{"key": "gpu", "effect": "NoSchedule"}]}
        assert read["status"] == {"allocatable": {"cpu": "1"}, "capacity": {"cpu": "1"}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind: Pod", "kind must be"),
        ("{kind: NodeGroup, name: x, gpus: 8}", "has no field gpus"),
        ("{kind: NodeGroup, name: x, count: 2}", "needs a name"),
        ("kind: [", "nodes.yaml"),
    ],
)
def test_a_mistake_in_a_node_file_is_named(tmp_path: Path, text: str, message: str):
    path = tmp_path / "nodes.yaml"
    path.write_text(text)
    with pytest.raises(NodeFileError, match=message):
        read_nodes(path)

"""Reads the nodes of a practice cluster from a YAML file.

A document is a v1 Node, a List or NodeList of them (`kubectl get nodes -o yaml` of a real cluster will do), or a
NodeGroup:

    kind: NodeGroup
    name: b300-{index}            # {index} counts from 0; {index:02} pads with zeros
    count: 4
    labels: {...}                 # values may contain {index}; kubernetes.io/hostname, os and arch (amd64) are added
    annotations: {...}
    taints: [{key: ..., value: ..., effect: NoSchedule}]
    capacity: {cpu: 224, nvidia.com/gpu: 8}
    allocatable: {...}            # default: as capacity
    unschedulable: [2, 3]         # the indexes of cordoned nodes, or true for all
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.harness.kube import Object
from tests.harness.kwok import NODE_ANNOTATION, flatten

HERE = Path(__file__).parent / "nodes"
SITES = (HERE / "digitalocean.yaml", HERE / "coreweave.yaml")
"""The two sites of a practice cluster when no file is named."""

GROUP_FIELDS = frozenset(
    {
        "apiVersion",
        "kind",
        "name",
        "count",
        "labels",
        "annotations",
        "taints",
        "capacity",
        "allocatable",
        "unschedulable",
    }
)
FROM_THE_SERVER = ("uid", "resourceVersion", "creationTimestamp", "managedFields", "generation", "ownerReferences")


class NodeFileError(ValueError):
    """A node file says something that the harness does not understand; the message names file and field."""


def read_nodes(path: Path) -> list[Object]:
    """The v1 Nodes that the file describes, each marked as KWOK's to manage. Raises NodeFileError or OSError."""
    try:
        documents = list(flatten(yaml.safe_load_all(path.read_text())))
    except yaml.YAMLError as error:
        raise NodeFileError(f"{path}: {error}") from None
    nodes: list[Object] = []
    for document in documents:
        kind = document.get("kind")
        if kind == "NodeGroup":
            nodes += expand(document, path)
        elif kind == "Node":
            nodes.append(adopt(document))
        else:
            raise NodeFileError(f"{path}: kind must be Node, List or NodeGroup, not {kind!r}")
    return nodes


def expand(group: Object, path: Path = Path("NodeGroup")) -> Iterator[Object]:
    """The Nodes of one NodeGroup."""
    unknown = sorted(set(group) - GROUP_FIELDS)
    if unknown:
        raise NodeFileError(f"{path}: NodeGroup has no field {', '.join(unknown)}")
    count = int(group.get("count", 1))
    name = str(group.get("name", ""))
    if not name or (count > 1 and "{index" not in name):
        raise NodeFileError(f"{path}: a NodeGroup needs a name, with {{index}} in it where count is above 1")
    cordoned = group.get("unschedulable", [])
    for index in range(count):

        def text(value: Any, index: int = index) -> str:
            return str(value).format(index=index)

        labels = {key: text(value) for key, value in group.get("labels", {}).items()}
        capacity = {key: str(value) for key, value in group.get("capacity", {}).items()}
        allocatable = {key: str(value) for key, value in group.get("allocatable", capacity).items()}
        spec: Object = {}
        if group.get("taints"):
            spec["taints"] = [dict(taint) for taint in group["taints"]]
        if cordoned is True or (isinstance(cordoned, list) and index in cordoned):
            spec["unschedulable"] = True
        annotations = {key: text(value) for key, value in group.get("annotations", {}).items()}
        yield adopt(
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": text(name), "labels": labels, "annotations": annotations},
                "spec": spec,
                "status": {"capacity": capacity, "allocatable": allocatable},
            }
        )


def adopt(node: Object) -> Object:
    """The node as it is created here: KWOK's annotation, the labels every kubelet sets, nothing from another API
    server.

    Conditions are left out: the node is new, and KWOK reports it Ready.
    """
    given = node.get("metadata", {})
    metadata = {key: value for key, value in given.items() if key not in FROM_THE_SERVER}
    status = node.get("status", {})
    arch = status.get("nodeInfo", {}).get("architecture", "amd64")
    metadata["labels"] = {
        "kubernetes.io/hostname": given["name"],
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": arch,
        **(given.get("labels") or {}),
    }
    metadata["annotations"] = {**(given.get("annotations") or {}), NODE_ANNOTATION[0]: NODE_ANNOTATION[1]}
    spec = dict(node.get("spec") or {})
    spec["taints"] = [
        taint
        for taint in spec.get("taints", [])
        if not taint["key"].startswith("node.kubernetes.io/")  # the controller manager sets these from the node's state
    ]
    capacity = status.get("capacity") or status.get("allocatable") or {}
    kept = {key: status[key] for key in ("nodeInfo", "addresses") if key in status}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": metadata,
        "spec": {key: value for key, value in spec.items() if value and key not in ("podCIDR", "podCIDRs")},
        "status": {"capacity": capacity, "allocatable": status.get("allocatable") or capacity, **kept},
    }

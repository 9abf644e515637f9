"""From an applied resource to placed, running replicas, and how few writes that takes."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import yaml

from kimi_k3_operator.api.base import API_VERSION
from tests.controlplane.site import DEPLOYMENTS, Site, pool
from tests.harness.kube import eventually

SAMPLE = Path(__file__).resolve().parents[2] / "samples" / "heterogeneous.yaml"


async def test_the_heterogeneous_sample_becomes_seven_replicas_on_the_right_nodes(site: Site) -> None:
    body = yaml.safe_load(SAMPLE.read_text())
    body["metadata"]["namespace"] = site.namespace
    await site.kube.apply(body, DEPLOYMENTS, manager="kubectl")
    await site.ready("k3")

    nodes = {node["metadata"]["name"]: node["metadata"]["labels"] for node in await site.kube.list("v1", "nodes")}
    pods = await site.pods("k3")
    assert len(pods) == 2 + 1 + 2 * 4
    for pod in pods:
        labels = nodes[pod["spec"]["nodeName"]]
        kind = pod["metadata"]["labels"]["kimik3.dev/pool"]
        if kind == "mi350x":
            assert labels["amd.com/gpu.device-id"] == "75a0"
        else:
            assert kind.upper() in labels["nvidia.com/gpu.product"]
        assert labels["kubernetes.io/arch"] == ("arm64" if kind == "gb300" else "amd64")
    domains = await site.domains("k3")
    assert len(domains) == 4
    assert all(len(found) == 1 for found in domains.values()), "a group never spans two NVLink domains"
    status = (await site.get("k3"))["status"]
    assert status["replicas"] == "7/7"
    assert status["hardware"] == "2 x B300, 1 x MI350X, 4 x GB300"
    for name, count in (("b300", 2), ("mi350x", 1), ("gb300", 4)):
        entries = await site.all_ready("k3", name, count)
        assert all(len(entry["nodes"]) == (2 if name == "gb300" else 1) for entry in entries)


async def test_creation_takes_one_write_per_object_one_for_the_finalizer_and_one_status_each(site: Site) -> None:
    since = site.now()
    await site.apply("k3", pool("b300", 2), pool("mi350x", 1), pool("gb300", 4))

    async def all_children() -> bool:
        return len(await site.children()) == 20

    await eventually(all_children, what="20 children")
    await site.ready("k3")
    await site.settled()
    made = Counter((entry.resource, entry.name) for entry in site.writes(since) if not entry.subresource)
    assert made == Counter({**dict.fromkeys(await site.children(), 1), (DEPLOYMENTS, "k3"): 1})

    statuses: dict[tuple[str, str], list[float]] = {}
    for entry in site.writes(since):
        if entry.subresource == "status" and entry.resource != "pods":
            statuses.setdefault((entry.resource, entry.name), []).append(entry.timestamp.timestamp())
    gates = Counter(entry.name for entry in site.writes(since) if entry.resource == "pods")
    assert len(gates) == 7, "each pod that serves HTTP is verified"
    assert set(gates.values()) <= {1, 2}, "one write when it has answered, one before where it could not be reached"
    assert set(statuses) == {(DEPLOYMENTS, "k3"), *(("kimik3pools", f"k3-{p}") for p in ("b300", "mi350x", "gb300"))}
    last_child = max(entry.timestamp.timestamp() for entry in site.writes(since) if not entry.subresource)
    for times in statuses.values():
        assert sum(moment <= last_child + 1 for moment in times) <= 1, "one status until all children exist"
        gaps = [later - earlier for earlier, later in pairwise(times)]
        assert all(gap > 0.9 for gap in gaps), "a status is written at most once a second"


async def test_another_pass_over_an_unchanged_world_writes_nothing(site: Site) -> None:
    await site.apply("k3", pool("b300", 1), pool("gb300", 2))
    await site.ready("k3")
    await site.settled()
    since = site.now()
    await site.one_more_pass()
    assert site.writes(since) == []


async def test_an_operator_that_starts_again_with_fifty_deployments_writes_nothing(site: Site) -> None:
    for number in range(50):
        await site.apply(f"k{number}", pool("b300", 1))

    async def all_reported() -> bool:
        found = await site.kube.list(API_VERSION, DEPLOYMENTS, site.namespace)
        return len(found) == 50 and all("status" in body for body in found)

    await eventually(all_reported, seconds=120, what="50 deployments with a status")
    await site.settled(seconds=120)
    site.operator.stop()
    since = site.now()
    site.operator.start()
    await site.one_more_pass()
    assert site.writes(since) == []


async def test_a_child_deleted_or_edited_by_hand_is_put_right(site: Site) -> None:
    await site.apply("k3", pool("b300", 1))
    await site.ready("k3")
    pods = await site.pod_uids("k3")
    await site.kube.delete("v1", "services", "k3-b300-engines", site.namespace)
    edit = {"spec": {"progressDeadlineSeconds": 7}, "metadata": {"labels": {"kimik3.dev/pool": "other"}}}
    await site.kube.patch("apps/v1", "deployments", "k3-b300-0", edit, site.namespace)

    async def restored() -> bool:
        children = await site.children()
        workload = children.get(("deployments", "k3-b300-0"))
        return (
            ("services", "k3-b300-engines") in children
            and workload is not None
            and workload["spec"]["progressDeadlineSeconds"] == 4200
            and workload["metadata"]["labels"]["kimik3.dev/pool"] == "b300"
        )

    await eventually(restored, what="the Service is back and the Deployment as before")
    assert await site.pod_uids("k3") == pods

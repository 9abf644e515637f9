"""NVLink domains on the real scheduler: whole groups, no double booking, one planner."""

from __future__ import annotations

import asyncio

from tests.controlplane.site import Site, pool
from tests.harness.kube import eventually
from tests.harness.operator_process import OperatorProcess

RACK_A = {"nodeSelector": {"kimik3.dev/test-rack": "a"}}


async def _mark_first_rack(site: Site) -> str:
    """Label the nodes of one rack so that a pool can be held to it; returns its clique."""
    nodes = await site.kube.list("v1", "nodes", selector="nvidia.com/gpu.clique")
    clique = min(node["metadata"]["labels"]["nvidia.com/gpu.clique"] for node in nodes)
    for node in nodes:
        if node["metadata"]["labels"]["nvidia.com/gpu.clique"] == clique:
            mark = {"metadata": {"labels": {"kimik3.dev/test-rack": "a"}}}
            await site.kube.patch("v1", "nodes", node["metadata"]["name"], mark)
    return str(clique)


async def test_a_rack_of_eighteen_with_two_unschedulable_holds_eight_and_the_ninth_says_why(site: Site) -> None:
    clique = await _mark_first_rack(site)
    await site.apply("k3", pool("gb300", 9, scheduling=RACK_A))
    condition = await site.until("k3", "CapacityAvailable", "False")
    assert condition["reason"] == "InsufficientCapacity"
    assert condition["message"] == f"k3-gb300-8: no NVLink domain has 2 free nodes ({clique}: 0)"

    async def eight_ready() -> bool:
        return sum(entry["phase"] == "Ready" for entry in await site.replicas("k3", "gb300")) == 8

    await eventually(eight_ready, seconds=90, what="eight replicas ready")
    ninth = next(entry for entry in await site.replicas("k3", "gb300") if entry["name"] == "k3-gb300-8")
    assert ninth["phase"] == "Pending"
    assert "no NVLink domain has 2 free nodes" in ninth["message"]

    async def told() -> bool:
        ready = await site.condition("k3", "Ready")
        assert ready["reason"] == "InsufficientCapacity"
        return str(ready["message"]).startswith("8 of 9 replicas ready; k3-gb300-8: no NVLink domain")

    await eventually(told, what="Ready's message says what it waits for")
    domains = await site.domains("k3")
    assert len(domains) == 8
    assert all(len(found) == 1 for found in domains.values())


async def test_a_ninth_replica_is_placed_as_soon_as_two_nodes_become_free(site: Site) -> None:
    await _mark_first_rack(site)
    await site.apply("k3", pool("gb300", 9, scheduling=RACK_A))
    await site.until("k3", "CapacityAvailable", "False")
    nodes = await site.kube.list("v1", "nodes", selector="kimik3.dev/test-rack=a")
    cordoned = [node["metadata"]["name"] for node in nodes if node["spec"].get("unschedulable")]
    assert len(cordoned) == 2
    try:
        for name in cordoned:
            await site.kube.patch("v1", "nodes", name, {"spec": {"unschedulable": False}})
        await site.until("k3", "CapacityAvailable", "True")
        await site.ready("k3")
    finally:
        for name in cordoned:
            await site.kube.patch("v1", "nodes", name, {"spec": {"unschedulable": True}})


async def test_two_deployments_applied_together_book_no_node_twice(site: Site) -> None:
    await asyncio.gather(site.apply("one", pool("gb300", 8)), site.apply("two", pool("gb300", 8)))
    await asyncio.gather(site.ready("one"), site.ready("two"))
    taken = [pod["spec"]["nodeName"] for name in ("one", "two") for pod in await site.pods(name)]
    assert len(taken) == len(set(taken)) == 32
    for name in ("one", "two"):
        domains = await site.domains(name)
        assert len(domains) == 8
        assert all(len(found) == 1 for found in domains.values())


async def test_a_second_operator_stands_by_and_says_so(site: Site) -> None:
    with OperatorProcess(site.cluster, name="harness") as second:
        since = site.now()
        await site.apply("k3", pool("gb300", 1), pool("b300", 1))
        await site.ready("k3")

        def told() -> bool:
            return second.get("/readyz")[1].startswith("stands by: operator ")

        await eventually(told, what="the second instance says who plans")
        assert "this instance stands by and changes nothing" in second.log.read_text()
        assert second.metric("kimi_k3_operator_planning") == 0
        agent = "kimi-k3-operator/"  # the tests themselves use this user as well
        assert not [e for e in second.writes(since, site.namespace) if e.user_agent.startswith(agent)]


async def test_an_operator_of_another_namespace_leaves_placing_to_the_planner(site: Site) -> None:
    """With disjoint namespaces both serve; only one plans, and the other's groups wait with its name."""
    other = f"{site.namespace}-other"
    await site.kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": other}})
    site.operator.stop()
    try:
        with (
            OperatorProcess(site.cluster, "--namespaces", site.namespace, name="kimi-k3-operator"),
            OperatorProcess(site.cluster, "--namespaces", other, name="harness"),
        ):
            theirs = Site(site.cluster, site.operator, site.kube, other)
            await site.apply("k3", pool("gb300", 1))
            await theirs.apply("k3", pool("gb300", 1), pool("b300", 1))
            await site.ready("k3")
            condition = await theirs.until("k3", "CapacityAvailable", "Unknown", reason="PlannedElsewhere")
            assert "k3-gb300-0: waits for placement by operator " in condition["message"]

            async def single_node_serves() -> bool:
                return [entry["phase"] for entry in await theirs.replicas("k3", "b300")] == ["Ready"]

            await eventually(single_node_serves, what="the single-node pool serves all the same")
    finally:
        site.operator.start()
        await site.kube.delete("v1", "namespaces", other)

"""Verified readiness against fake engines behind the pods: who gets traffic, and why not."""

from __future__ import annotations

from kimi_k3_operator.api import labels
from tests.controlplane.site import Site, pool
from tests.harness.engine import FakeEngine, Fault, FaultOrder
from tests.harness.kube import Object, eventually


def _gate(pod: Object) -> Object:
    conditions = pod.get("status", {}).get("conditions") or []
    return next((c for c in conditions if c["type"] == labels.VERIFIED), {"status": "", "reason": "", "message": ""})


def _ready(pod: Object) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions") or ())


async def _engine(site: Site, replica: str) -> FakeEngine:
    """The fake engine behind a replica, as soon as it runs."""

    async def found() -> FakeEngine | None:
        for pod in await site.pods("k3"):
            if pod["metadata"]["labels"]["kimik3.dev/replica"] == replica and pod["status"].get("podIP"):
                return site.cluster.engines.engine(pod)
        return None

    return await eventually(found, what=f"an engine behind {replica}")


async def _break(site: Site, replica: str, fault: Fault) -> FakeEngine:
    engine = await _engine(site, replica)
    engine.faults.replace([FaultOrder(fault)])
    return engine


async def test_a_pod_is_ready_only_after_its_engine_has_answered(site: Site) -> None:
    await site.apply("k3", pool("b300", 1), pool("gb300", 1))
    await site.ready("k3")
    for pod in await site.pods("k3"):
        serves = labels.SERVES_HTTP in pod["metadata"]["labels"]
        gates = [gate["conditionType"] for gate in pod["spec"].get("readinessGates") or ()]
        assert gates == ([labels.VERIFIED] if serves else []), "a headless worker has no gate"
        if serves:
            containers = {c["name"]: c["containerID"] for c in pod["status"]["containerStatuses"]}
            assert _gate(pod)["message"] == f"verified {containers['engine']}"
    assert (await site.until("k3", "Verified", "True"))["message"] == "2 engines have answered rightly"


async def test_a_replica_that_answers_wrongly_is_taken_out_says_why_and_comes_back(site: Site) -> None:
    await site.apply("k3", pool("b300", 3))
    await site.ready("k3")
    engine = await _break(site, "k3-b300-1", Fault.EMPTY_ANSWER)
    condition = await site.until("k3", "Verified", "False", reason="WrongAnswer", seconds=60)
    assert condition["message"] == "k3-b300-1: the answer to a sum is empty"
    ready = await site.condition("k3", "Ready")
    assert ready["reason"] == "WrongAnswer"

    async def out() -> bool:
        states = {pod["metadata"]["labels"]["kimik3.dev/replica"]: _ready(pod) for pod in await site.pods("k3")}
        return states == {"k3-b300-0": True, "k3-b300-1": False, "k3-b300-2": True}

    await eventually(out, what="the broken replica alone is out of the Service")
    assert (await site.condition("k3", "Available"))["status"] == "True"
    engine.faults.replace([])
    await site.ready("k3", seconds=60)


async def test_when_all_answer_wrongly_no_more_than_the_allowance_leaves(site: Site) -> None:
    await site.apply("k3", pool("b300", 4))
    await site.ready("k3")
    engines = [await _break(site, f"k3-b300-{number}", Fault.WRONG_TEXT) for number in range(4)]
    condition = await site.until("k3", "Verified", "Unknown", reason="ProbeSuspect", seconds=90)
    assert "more than may be taken out at once; they keep serving" in condition["message"]

    async def three_serve() -> bool:
        return sum(map(_ready, await site.pods("k3"))) == 3

    await eventually(three_serve, what="three of four keep serving")
    for engine in engines:
        engine.faults.replace([])
    await site.ready("k3", seconds=60)


async def test_an_engine_that_refuses_or_cannot_be_reached_keeps_its_open_gate(site: Site) -> None:
    await site.apply("k3", pool("b300", 1))
    await site.ready("k3")
    asked = site.operator.metric("kimi_k3_operator_probes_total")
    engine = await _break(site, "k3-b300-0", Fault.COMPLETIONS_503)
    await eventually(
        lambda: site.operator.metric("kimi_k3_operator_probes_total") >= asked + 4, seconds=90, what="more probes"
    )
    (found,) = await site.pods("k3")
    assert _ready(found)
    assert _gate(found)["status"] == "True"
    engine.faults.replace([])


async def test_a_new_replica_that_never_answers_rightly_gets_no_traffic_and_stops_the_rollout(site: Site) -> None:
    await site.apply("k3", pool("b300", 2))
    await site.ready("k3")
    before = await site.pod_uids("k3")
    tuned = {"reference": "registry.example/vllm:bad", "engineVersion": "0.30.0"}
    site.cluster.engines.break_image("registry.example/vllm:bad", Fault.WRONG_TEXT)
    try:
        await site.apply("k3", pool("b300", 2, image=tuned))
        condition = await site.until("k3", "Verified", "False", reason="WrongAnswer", seconds=90)
        assert "the answer to a sum is wrong" in condition["message"]
        await site.settled()
        pods = await site.pods("k3")
        assert sum(map(_ready, pods)) == 1, "the other replica was not touched"
        assert len(before & await site.pod_uids("k3")) == 1
    finally:
        site.cluster.engines.break_image("registry.example/vllm:bad", None)


async def test_report_leaves_the_gate_off_and_tells(site: Site) -> None:
    await site.apply("k3", pool("b300", 1), verification={"gate": "Report"})
    await site.ready("k3")
    await site.until("k3", "Verified", "True")
    engine = await _break(site, "k3-b300-0", Fault.EMPTY_ANSWER)
    await site.until("k3", "Verified", "False", reason="WrongAnswer", seconds=60)
    (found,) = await site.pods("k3")
    assert _ready(found), "traffic goes on: the gate only reports"
    engine.faults.replace([])


async def test_a_new_operator_process_asks_no_verified_engine_again_before_it_serves(site: Site) -> None:
    await site.apply("k3", pool("b300", 2))
    await site.ready("k3")
    await site.settled()
    site.operator.stop()
    since = site.now()
    site.operator.start()
    await site.one_more_pass()
    assert site.writes(since) == []
    assert all(map(_ready, await site.pods("k3")))

from __future__ import annotations

from typing import Any

from tests.factories import CLIQUE, NAMESPACE, b300, deployment, gb300, revision_of

from kimi_k3_operator.api import labels
from kimi_k3_operator.compile.replica import PoolKey, Replica
from kimi_k3_operator.compile.workloads import workload
from kimi_k3_operator.inventory.model import DomainPlacement
from kimi_k3_operator.inventory.parse import parse_promise

PLACE = DomainPlacement(CLIQUE, "rack-a.1")


def single(**more: Any) -> dict[str, Any]:
    body = deployment(b300(**more))
    return workload(Replica(PoolKey(NAMESPACE, "k3", "b300"), 2), revision_of(body), None)


def group(name: str = "k3", place: DomainPlacement | None = PLACE) -> dict[str, Any]:
    body = deployment(gb300(), name=name)
    return workload(Replica(PoolKey(NAMESPACE, name, "gb300"), 0), revision_of(body), place)


def terms(template: dict[str, Any]) -> list[dict[str, Any]]:
    affinity = template["spec"]["affinity"]["nodeAffinity"]
    return affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]


def test_a_single_node_replica_is_a_deployment_that_replaces_its_only_pod():
    made = single(startupBudget="2h")
    spec = made["spec"]
    assert (made["kind"], made["metadata"]["name"]) == ("Deployment", "k3-b300-2")
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    assert spec["progressDeadlineSeconds"] == 7200 + 600
    assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()


def test_workload_and_pod_name_the_revision():
    made, revision = single(), revision_of(deployment(b300()))
    assert made["metadata"]["annotations"] == {labels.REVISION: revision.name}
    assert made["spec"]["template"]["metadata"]["labels"][labels.REVISION] == revision.label
    assert revision.name.endswith(revision.label)


def test_a_group_states_every_field_that_the_webhook_would_fill_in():
    spec = group()["spec"]
    assert spec["replicas"] == 1
    assert spec["startupPolicy"] == "LeaderCreated"
    assert spec["networkConfig"] == {"subdomainPolicy": "Shared"}
    assert spec["rolloutStrategy"] == {
        "type": "RollingUpdate",
        "rollingUpdateConfiguration": {"partition": 0, "maxUnavailable": 1, "maxSurge": 0},
    }
    assert spec["leaderWorkerTemplate"]["size"] == 2
    assert spec["leaderWorkerTemplate"]["restartPolicy"] == "RecreateGroupOnPodRestart"


def test_both_pods_of_a_group_are_pinned_to_its_domain_in_every_term():
    made = group()
    pinned = {"key": CLIQUE, "operator": "In", "values": ["rack-a.1"]}
    for name in ("leaderTemplate", "workerTemplate"):
        found = terms(made["spec"]["leaderWorkerTemplate"][name])
        assert found
        assert all(term["matchExpressions"][-1] == pinned for term in found)
        assert all(len(term["matchExpressions"]) > 1 for term in found)


def test_the_pinned_group_is_read_back_as_its_promise():
    promise = parse_promise(group())
    assert promise is not None
    assert (promise.domain, promise.nodes, promise.replica) == (PLACE, 2, "k3-gb300-0")
    assert parse_promise(group(place=None)) is None


def test_pinning_leaves_the_stored_template_alone():
    revision = revision_of(deployment(gb300()))
    before = str(revision.leader)
    workload(Replica(PoolKey(NAMESPACE, "k3", "gb300"), 0), revision, PLACE)
    assert str(revision.leader) == before


def test_a_group_with_a_long_name_is_shortened_and_its_replica_is_not():
    name = "a" * 40
    made = group(name)
    assert len(made["metadata"]["name"]) == 39
    assert made["metadata"]["name"].endswith("-gb300-0")
    assert made["metadata"]["labels"][labels.REPLICA] == f"{name}-gb300-0"
    assert group("a" * 30)["metadata"]["name"] == "a" * 30 + "-gb300-0"


def test_every_workload_and_pod_has_our_labels():
    made = group()
    mine = labels.replica_labels("k3", "gb300", "k3-gb300-0")
    templates = made["spec"]["leaderWorkerTemplate"]
    assert made["metadata"]["labels"] == mine
    for name in ("leaderTemplate", "workerTemplate"):
        assert mine.items() <= templates[name]["metadata"]["labels"].items()
    assert labels.SERVES_HTTP in templates["leaderTemplate"]["metadata"]["labels"]
    assert labels.SERVES_HTTP not in templates["workerTemplate"]["metadata"]["labels"]

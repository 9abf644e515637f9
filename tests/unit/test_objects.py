from __future__ import annotations

from kimi_k3_operator.api import labels
from kimi_k3_operator.compile import objects
from kimi_k3_operator.compile.replica import PoolKey

KEY = PoolKey("serving", "k3", "b300")
DECODE = PoolKey("serving", "k3", "gb300", "decode")


def test_every_object_is_named_placed_and_labelled():
    made = {
        "k3-engine": objects.service_account("serving", "k3"),
        "k3-nvlink": objects.compute_domain("serving", "k3"),
        "k3-b300-engines": objects.pool_service(KEY),
        "k3-b300": objects.pool_object(KEY, "b300/1"),
        "k3-gb300-decode": objects.disruption_budget(DECODE, pods=2),
    }
    for name, body in made.items():
        assert (body["metadata"]["name"], body["metadata"]["namespace"]) == (name, "serving")
        assert labels.deployment_labels("k3").items() <= body["metadata"]["labels"].items()


def test_a_service_finds_only_the_pods_of_its_pool_that_serve_http():
    spec = objects.pool_service(KEY)["spec"]
    assert spec["selector"] == {labels.DEPLOYMENT: "k3", labels.POOL: "b300", labels.SERVES_HTTP: "true"}
    assert spec["ports"] == [{"name": "http", "port": 8000, "targetPort": "http", "protocol": "TCP"}]


def test_a_pool_object_states_no_replicas():
    assert objects.pool_object(KEY, "b300/1")["spec"] == {"deployment": "k3", "pool": "b300", "profile": "b300/1"}
    assert objects.pool_object(DECODE, "gb300/1")["spec"]["role"] == "decode"


def test_a_disruption_budget_counts_all_pods_of_a_pool_and_lets_broken_ones_go():
    spec = objects.disruption_budget(DECODE, pods=6)["spec"]
    assert spec["minAvailable"] == 6
    assert spec["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    assert spec["selector"]["matchLabels"] == {
        labels.DEPLOYMENT: "k3",
        labels.POOL: "gb300",
        labels.ROLE: "decode",
    }


def test_a_compute_domain_waits_for_no_number_of_nodes():
    spec = objects.compute_domain("serving", "k3")["spec"]
    assert spec["numNodes"] == 0
    assert spec["channel"]["resourceClaimTemplate"] == {"name": "k3-nvlink-channel"}


def test_the_engines_identity_has_no_token():
    assert objects.service_account("serving", "k3")["automountServiceAccountToken"] is False

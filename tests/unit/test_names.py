from __future__ import annotations

import re
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from kimi_k3_operator.api import labels, names
from kimi_k3_operator.api.names import MAX_LEADER_WORKER_SET_NAME, MAX_SERVICE_NAME

deployment_names = st.from_regex(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", fullmatch=True)
pool_names = st.from_regex(r"[a-z][a-z0-9]{0,14}", fullmatch=True).filter(
    lambda name: name not in ("prefill", "decode")
)
roles = st.sampled_from(["", "prefill", "decode"])
LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


def test_names_say_deployment_pool_role_and_ordinal():
    assert names.pool_object("k3", "b300") == "k3-b300"
    assert names.replica("k3", "b300", 2) == "k3-b300-2"
    assert names.replica("k3", "gb300", 0, "prefill") == "k3-gb300-prefill-0"
    assert names.leader_worker_set("k3", "gb300", 0, "decode") == "k3-gb300-decode-0"
    assert names.pool_service("k3", "b300") == "k3-b300-engines"
    assert names.engine_service_account("k3") == "k3-engine"
    assert names.compute_domain("k3") == "k3-nvlink"
    assert names.channel_claim_template("k3") == "k3-nvlink-channel"
    assert names.revision("k3-b300", "0123456789abcdef") == "k3-b300-0123456789"


def test_a_long_leader_worker_set_name_keeps_its_end_and_gets_six_hash_digits():
    long = names.leader_worker_set("a-deployment-with-quite-a-long-name", "gb300", 12)
    assert re.fullmatch(r"a-deployment-with-quite-[a-z-]*[0-9a-f]{6}-gb300-12", long)
    assert len(long) == MAX_LEADER_WORKER_SET_NAME


def test_two_long_deployments_that_begin_alike_get_different_names():
    one, other = ("a-deployment-with-quite-a-long-name-" + end for end in ("a", "b"))
    assert names.leader_worker_set(one, "gb300", 0) != names.leader_worker_set(other, "gb300", 0)
    assert names.pool_service(one.ljust(40, "x"), "p" * 15) != names.pool_service(other.ljust(40, "x"), "p" * 15)


def test_a_cut_at_a_dash_leaves_no_double_dash():
    for length in range(30, 41):
        name = names.leader_worker_set(("ab-" * 14)[:length].rstrip("-"), "gb300", 0)
        assert "--" not in name


@given(deployment_names, pool_names, roles, st.integers(0, 999))
def test_every_name_fits_its_kind(deployment, pool, role, ordinal):
    group = names.leader_worker_set(deployment, pool, ordinal, role)
    service = names.pool_service(deployment, pool, role)
    for name, most in ((group, MAX_LEADER_WORKER_SET_NAME), (service, MAX_SERVICE_NAME)):
        assert LABEL.fullmatch(name)
        assert len(name) <= most
    assert group.endswith(f"-{ordinal}")


@given(deployment_names, pool_names, st.integers(0, 999))
def test_labels_of_a_replica_are_valid_label_values(deployment, pool, ordinal):
    mine = labels.replica_labels(deployment, pool, names.replica(deployment, pool, ordinal))
    assert all(len(value) <= 63 for value in mine.values())


def test_no_two_deployments_can_make_one_name():
    made: dict[str, tuple[str, ...]] = {}
    for deployment, pool in product(
        ("k3", "k3-b300", "k3-engine", "k3-nvlink"), ("b300", "engine", "nvlink", "engines")
    ):
        for what in (
            names.replica(deployment, pool, 0),
            names.pool_object(deployment, pool),
            names.pool_object(deployment, pool, "prefill"),
        ):
            assert made.setdefault(what, (deployment, pool)) == (deployment, pool)


def test_labels_tell_deployment_pool_role_and_replica():
    assert labels.pool_labels("k3", "b300") == labels.deployment_labels("k3") | {labels.POOL: "b300"}
    mine = labels.replica_labels("k3", "gb300", "k3-gb300-decode-0", "decode")
    assert (mine[labels.ROLE], mine[labels.REPLICA]) == ("decode", "k3-gb300-decode-0")
    assert labels.MANAGED_SELECTOR == "app.kubernetes.io/managed-by=kimi-k3-operator"

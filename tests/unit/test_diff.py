from __future__ import annotations

import copy
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kimi_k3_operator.api import labels
from kimi_k3_operator.plan.diff import covers, marked, needs_apply, quantity
from kimi_k3_operator.plan.snapshot import parse_child

OWNER = {"uid": "u", "name": "k3"}
SERVICE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "s", "namespace": "n", "labels": {"a": "b"}},
    "spec": {"type": "ClusterIP", "ports": [{"name": "http", "port": 8000}]},
}
WANTED = marked(SERVICE, OWNER)


def live(**changes):
    return parse_child({**copy.deepcopy(WANTED), **changes}, "Service")


def test_a_marked_object_has_its_owner_and_the_hash_of_what_is_applied():
    assert WANTED["metadata"]["ownerReferences"] == [OWNER]
    assert WANTED["metadata"]["annotations"][labels.APPLIED_HASH]
    assert "annotations" not in SERVICE["metadata"]
    other = marked({**SERVICE, "spec": {}}, OWNER)
    assert other["metadata"]["annotations"] != WANTED["metadata"]["annotations"]


def test_what_is_missing_is_applied():
    assert needs_apply(WANTED, None)


def test_what_is_there_already_is_not_applied():
    assert not needs_apply(WANTED, live())


def test_what_the_server_or_others_add_is_left_alone():
    added = {"clusterIP": "10.0.0.1", **WANTED["spec"]}
    added["ports"] = [{"name": "http", "port": 8000, "protocol": "TCP"}, {"name": "theirs", "port": 1}]
    assert not needs_apply(WANTED, live(spec=added))


def test_a_field_edited_by_hand_is_applied_again():
    assert needs_apply(WANTED, live(spec={"type": "NodePort", "ports": WANTED["spec"]["ports"]}))
    assert needs_apply(WANTED, live(spec={"type": "ClusterIP", "ports": [{"name": "http", "port": 8001}]}))
    assert needs_apply(WANTED, live(spec={"type": "ClusterIP", "ports": []}))


def test_an_object_applied_from_something_else_is_applied_again():
    metadata = {**WANTED["metadata"], "annotations": {labels.APPLIED_HASH: "other"}}
    assert needs_apply(WANTED, live(metadata=metadata))
    assert needs_apply(WANTED, live(metadata={"name": "s"}))


@pytest.mark.parametrize(
    ("there", "declared"),
    [
        ({"a": 1, "b": 2}, {"a": 1}),
        ({}, {"a": {}, "b": [], "c": False, "d": 0, "e": "", "f": None}),
        ({"m": "8"}, {"m": 8}),
        ({"m": "1Ki"}, {"m": "1024"}),
        ({"m": "1"}, {"m": "1000m"}),
        ([{"name": "b"}, {"name": "a", "v": 1}], [{"name": "a"}, {"name": "b"}]),
        ([{"name": "v", "mountPath": "/a"}, {"name": "v", "mountPath": "/b"}], [{"name": "v", "mountPath": "/b"}]),
        (["a", "b"], ["a", "b"]),
    ],
)
def test_a_live_value_covers(there, declared):
    assert covers(there, declared)


@pytest.mark.parametrize(
    ("there", "declared"),
    [
        ({}, {"a": 1}),
        ({"a": 2}, {"a": 1}),
        ("x", {"a": 1}),
        ({"a": 1}, [1]),
        (["a"], ["a", "b"]),
        ([{"name": "b"}], [{"name": {}}]),
        (["b", "a"], ["a", "b"]),
        ([{"name": "a", "v": 2}], [{"name": "a", "v": 1}]),
        ([{"name": "b"}], [{"name": "a"}]),
        ([{"key": "t", "value": "1"}], [{"key": "t", "value": "1"}, {"key": "t", "value": "2"}]),
        ({"m": "1Gi"}, {"m": "1G"}),
        ({"flag": True}, {"flag": 1.5}),
    ],
)
def test_a_live_value_does_not_cover(there, declared):
    assert not covers(there, declared)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("64Gi", Decimal(64 * 2**30)),
        ("250m", Decimal("0.25")),
        ("1.5k", Decimal(1500)),
        (8, Decimal(8)),
        ("-2", Decimal(-2)),
        (True, None),
        (1.5, None),
        ("", None),
        ("Gi", None),
        ("8 Gi", None),
        ("nan", None),
        ("sNaN", None),
        ("infinity", None),
        ("12345678e1234567", None),
        ("1Mm", None),
    ],
)
def test_a_quantity_is_a_number_with_a_known_suffix(text, number):
    assert quantity(text) == number


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "key", "a"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(json_values)
def test_a_value_covers_itself(value):
    assert covers(value, copy.deepcopy(value))


@given(json_values, json_values)
def test_any_two_values_can_be_compared(one, other):
    assert covers(one, other) in (True, False)

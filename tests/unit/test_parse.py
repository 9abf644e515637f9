from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.factories import HOST_PATH, b300, deployment, parsed

from kimi_k3_operator.api.base import API_VERSION
from kimi_k3_operator.api.parse import Deployment, parse_deployment


def refused(body: Any) -> list[tuple[str, str]]:
    """(id, field) of each refusal."""
    found = parse_deployment(body)
    assert not isinstance(found, Deployment)
    return [(refusal.id, refusal.field) for refusal in found]


def sentences(body: Any) -> str:
    found = parse_deployment(body)
    assert not isinstance(found, Deployment)
    return "\n".join(map(str, found))


def test_a_right_deployment_is_typed():
    found = parsed(deployment(b300(2)))
    assert (found.name, found.namespace, found.generation) == ("k3", "serving", 1)
    assert found.spec.pools[0].replicas == 2
    assert found.spec.pools[0].drain_seconds == 900


def test_without_a_namespace_it_is_default():
    body = deployment()
    del body["metadata"]["namespace"]
    assert parsed(body).namespace == "default"


@pytest.mark.parametrize("change", [{"kind": "Deployment"}, {"apiVersion": "kimik3.dev/v2"}])
def test_another_kind_is_refused_and_nothing_else_is_said(change: dict[str, str]):
    assert refused({**deployment(b300(nonsense=1)), **change}) == [("wrong-kind", "kind")]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({**deployment(), "spce": {}}, ("unknown-field", "spce")),
        (deployment(b300(replica=2)), ("unknown-field", "spec.pools[b300].replica")),
        (deployment({"profile": {"name": "b300"}, "replicas": 1}), ("missing-field", "spec.pools[0].name")),
        (deployment(b300(-1)), ("out-of-range", "spec.pools[b300].replicas")),
        (deployment(b300(1001)), ("out-of-range", "spec.pools[b300].replicas")),
        (deployment(b300(drainSeconds=10)), ("out-of-range", "spec.pools[b300].drainSeconds")),
        (deployment(b300(startupBudget="2 hours")), ("malformed", "spec.pools[b300].startupBudget")),
        (deployment(b300(name="B300")), ("malformed", "spec.pools[B300].name")),
        (deployment(b300("two")), ("malformed", "spec.pools[b300].replicas")),
        (deployment(b300(name="p" * 16)), ("out-of-range", f"spec.pools[{'p' * 16}].name")),
        (deployment(b300(), model={"id": "<your model>"}), ("placeholder", "spec.model.id")),
        (deployment(b300(), weights={"hostPath": {"path": "/${DIR}"}}), ("placeholder", "spec.weights.hostPath.path")),
        (deployment(b300(), model={"servedName": "x" * 129}), ("out-of-range", "spec.model.servedName")),
        (
            deployment(b300(speculation={"mode": "on"})),
            ("malformed", "spec.pools[b300].speculation.mode"),
        ),
        (
            deployment(b300(overrides={"args": {"Bad Flag": "1"}})),
            ("malformed", "spec.pools[b300].overrides.args.Bad Flag"),
        ),
        ({**deployment(), "spec": {"weights": HOST_PATH, "pools": []}}, ("out-of-range", "spec.pools")),
        ({**deployment(), "spec": {"weights": HOST_PATH}}, ("missing-field", "spec.pools")),
        ({**deployment(), "spec": None}, ("missing-field", "spec.pools")),
        ({**deployment(), "spec": "text"}, ("malformed", "spec")),
        ({**deployment(), "metadata": None}, ("missing-field", "metadata")),
        ({**deployment(), "metadata": "text"}, ("missing-field", "metadata")),
    ],
)
def test_each_bad_field_is_named(body: Any, expected: tuple[str, str]):
    assert refused(body) == [expected]


@pytest.mark.parametrize("name", ["", "K3", "3k", "k3-", "-k3", "k.3", "k" * 41, "k3\n"])
def test_a_name_that_children_could_not_carry_is_refused(name: str):
    body = deployment()
    body["metadata"]["name"] = name
    assert refused(body) == [("deployment-name", "metadata.name")]


@pytest.mark.parametrize("name", ["k", "k3", "kimi-k3", "k" * 40])
def test_a_name_that_children_can_carry_is_taken(name: str):
    assert parsed(deployment(name=name)).name == name


def test_a_close_field_name_is_suggested():
    assert "did you mean replicas?" in sentences(deployment(b300(replica=2)))
    assert "did you mean spec?" in sentences({**deployment(), "spce": {}})
    assert "did you mean concurrency?" in sentences(deployment(b300(load={"concurency": 1})))
    assert "did you mean" not in sentences(deployment(b300(zzz=2)))


def test_a_long_value_is_shortened_in_the_sentence():
    assert len(sentences(deployment(b300(startupBudget=["x" * 500])))) < 300


def test_all_bad_fields_are_reported():
    body = deployment(b300(-1, load={"concurrency": 0}), b300(name="other", nonsense=1))
    body["metadata"]["name"] = "Bad"
    found = refused(body)
    assert {field for _, field in found} == {
        "metadata.name",
        "spec.pools[b300].replicas",
        "spec.pools[b300].load.concurrency",
        "spec.pools[other].nonsense",
    }


def test_cross_field_rules_are_checked_everywhere_below():
    body = deployment(
        b300(autoscaling={"minReplicas": 3, "maxReplicas": 1}),
        b300(name="decode"),
        weights={"huggingFace": {"cache": {}}},
        placement={"mode": "Kueue"},
    )
    assert set(refused(body)) == {
        ("replica-source", "spec.pools[b300]"),
        ("autoscaling-bounds", "spec.pools[b300].autoscaling.minReplicas"),
        ("pool-name-taken", "spec.pools[decode].name"),
        ("one-cache", "spec.weights.huggingFace.cache"),
        ("queue-missing", "spec.placement.queueName"),
    }


def test_a_refusal_reads_as_a_sentence():
    (refusal,) = (r for r in parse_deployment({"apiVersion": API_VERSION, "kind": "Pod"}) if r)  # type: ignore[union-attr]
    assert str(refusal) == f"kind: expected {API_VERSION} KimiK3Deployment, found {API_VERSION}/Pod"


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=5,
)


@given(
    spec=st.dictionaries(
        st.sampled_from(["weights", "pools", "model", "routing", "rollout", "placement", "paused", "x"]), values
    ),
    pool=st.dictionaries(st.sampled_from(["name", "profile", "replicas", "load", "overrides", "image", "x"]), values),
)
@settings(max_examples=150, deadline=None)
def test_whatever_is_written_is_typed_or_refused(spec: dict[str, Any], pool: dict[str, Any]):
    for written in (spec, {**spec, "pools": [pool]}, {**deployment()["spec"], **spec}):
        found = parse_deployment({**deployment(), "spec": written})
        assert isinstance(found, Deployment) or all(refusal.message for refusal in found)
        assert found

from __future__ import annotations

from typing import Any

import pytest
from tests.factories import CLAIM, HOST_PATH, b300, deployment, gb300, pool

from kimi_k3_operator.api.parse import Deployment, parse_deployment
from kimi_k3_operator.api.rules import RULES, rules_at, rules_for, validations
from kimi_k3_operator.api.v1alpha1 import KimiK3DeploymentSpec

CACHE = {"persistentVolumeClaim": {"claimName": "c"}}
DRAFT = {"id": "Inferact/Kimi-K3-DSpark"}
APART = {"prefill": {"replicas": 1}, "decode": {"replicas": 1}}


def speculating(draft: dict[str, str]) -> dict[str, Any]:
    return deployment(b300(speculation={"mode": "DSpark", "draft": draft}))


ROWS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("weights-source", deployment(weights=None), deployment(b300(weights=CLAIM), weights=None)),
    ("weights-source", deployment(b300(weights=CLAIM), gb300(), weights=None), deployment(b300(), gb300())),
    ("one-weight-source", deployment(weights={}), deployment(weights=CLAIM)),
    ("one-weight-source", deployment(weights={**CLAIM, **HOST_PATH}), deployment(weights=HOST_PATH)),
    ("placeholder", deployment(weights={"hostPath": {"path": "/a/<dir>"}}), deployment()),
    (
        "placeholder",
        deployment(weights={"persistentVolumeClaim": {"claimName": "c", "subPath": "${X}"}}),
        deployment(weights={"persistentVolumeClaim": {"claimName": "c", "subPath": "$X"}}),
    ),
    (
        "one-cache",
        deployment(weights={"huggingFace": {"cache": {**CACHE, **HOST_PATH}}}),
        deployment(weights={"huggingFace": {"cache": CACHE}}),
    ),
    ("replica-source", deployment(pool("b300", None)), deployment(b300(0))),
    ("replica-source", deployment(gb300(1, disaggregation=APART)), deployment(gb300(None, disaggregation=APART))),
    ("pool-name-taken", deployment(b300(name="prefill")), deployment(b300(name="prefil"))),
    (
        "autoscaling-bounds",
        deployment(b300(None, autoscaling={"minReplicas": 2, "maxReplicas": 1})),
        deployment(b300(None, autoscaling={"minReplicas": 1, "maxReplicas": 1})),
    ),
    ("one-draft-path", speculating({**DRAFT, "subPath": "d", "path": "/d"}), speculating({**DRAFT, "path": "/d"})),
    (
        "queue-missing",
        deployment(placement={"mode": "Kueue"}),
        deployment(placement={"mode": "Kueue", "queueName": "q"}),
    ),
    (
        "queue-without-kueue",
        deployment(placement={"mode": "Planner", "queueName": "q"}),
        deployment(placement={"mode": "Auto", "queueName": "q"}),
    ),
]


@pytest.mark.parametrize(("rule", "wrong", "right"), ROWS)
def test_a_rule_refuses_the_wrong_form_and_no_other(rule: str, wrong: dict[str, Any], right: dict[str, Any]):
    found = parse_deployment(wrong)
    assert not isinstance(found, Deployment)
    assert rule in {refusal.id for refusal in found}
    assert isinstance(parse_deployment(right), Deployment)


def test_every_rule_has_a_row():
    assert {rule for rule, _, _ in ROWS} == {rule.id for rule in RULES}


def test_rules_go_into_the_schema_of_their_model():
    assert rules_at("spec")["x-kubernetes-validations"] == validations(rules_for("spec"))
    schema = KimiK3DeploymentSpec.model_json_schema(by_alias=True)
    assert schema["x-kubernetes-validations"][0]["fieldPath"] == ".weights"
    assert "fieldPath" not in validations(rules_for("weights"))[0]

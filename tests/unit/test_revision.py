from __future__ import annotations

from typing import Any

import pytest
from tests.factories import CLAIM, HOST_PATH, b300, deployment, gb300, mi350x, revision_of

from kimi_k3_operator.compile.replica import PoolKey
from kimi_k3_operator.compile.revision import controller_revision, digest, parse_revision


def inputs(*pools: Any, **spec: Any) -> str:
    return revision_of(deployment(*pools, **spec)).inputs


PLAIN = inputs(b300())


@pytest.mark.parametrize(
    "body",
    [
        deployment(b300(5)),
        deployment(b300(None, autoscaling={"minReplicas": 1, "maxReplicas": 4})),
        deployment(b300(name="other")),
        deployment(b300(), mi350x()),
        deployment(b300(), paused=True),
        deployment(b300(), rollout={"maxUnavailable": 3}),
        deployment(b300(), placement={"mode": "Planner"}),
        deployment(b300(weights=HOST_PATH), weights=CLAIM),
        deployment(b300(drainSeconds=900)),
        deployment(b300(load={})),
        deployment(b300(load={"concurrency": 8, "contextTokens": 131072})),
        deployment(b300(speculation={"mode": "Auto"})),
        deployment(b300(scheduling={"nodeSelector": {}, "tolerations": []}, overrides={"args": {}})),
        deployment(b300(), model={"servedName": "kimi-k3"}),
        deployment({"name": "b300", "profile": {"name": "b300", "version": "1"}, "replicas": 1}),
    ],
)
def test_what_engines_do_not_depend_on_changes_no_inputs(body: dict[str, Any]):
    assert revision_of(body).inputs == PLAIN


@pytest.mark.parametrize(
    "body",
    [
        deployment(b300(drainSeconds=901)),
        deployment(b300(load={"concurrency": 9})),
        deployment(b300(speculation={"mode": "Off"})),
        deployment(b300(startupBudget="3h")),
        deployment(b300(overrides={"env": {"VLLM_LOGGING_LEVEL": "DEBUG"}})),
        deployment(b300(overrides={"args": {"enforce-eager": ""}})),
        deployment(b300(overrides={"unsetEnv": ["VLLM_DO_NOT_TRACK"]})),
        deployment(b300(scheduling={"nodeSelector": {"zone": ""}})),
        deployment(b300(image={"reference": "registry.example/vllm:v2", "engineVersion": "0.30.0"})),
        deployment(b300(), weights=CLAIM),
        deployment(b300(), model={"servedName": "k3"}),
        deployment(b300(), imagePullSecrets=[{"name": "s"}]),
        deployment(mi350x(name="b300")),
        deployment(b300(), placement={"computeDomain": {"existing": "shared"}}),
    ],
)
def test_what_engines_depend_on_changes_the_inputs(body: dict[str, Any]):
    assert revision_of(body).inputs != PLAIN


def test_a_revision_is_named_after_inputs_and_rendering():
    revision = revision_of(deployment(b300()))
    assert revision.name == f"k3-b300-{digest([revision.inputs, revision.render])[:10]}"
    assert revision.label == revision.name[-10:]


def test_only_groups_have_a_worker():
    assert not revision_of(deployment(b300())).multi_node
    assert revision_of(deployment(gb300())).multi_node


@pytest.mark.parametrize("pool", [b300(), gb300()])
def test_a_stored_revision_is_read_back_as_it_was(pool: dict[str, Any]):
    revision = revision_of(deployment(pool))
    stored = controller_revision(PoolKey("serving", "k3", pool["name"]), revision, 7)
    assert (stored["revision"], stored["metadata"]["name"]) == (7, revision.name)
    assert parse_revision(stored) == revision


def test_the_rendering_of_the_same_spec_is_the_same():
    assert revision_of(deployment(gb300())) == revision_of(deployment(gb300()))


def test_a_digest_does_not_depend_on_the_order_of_keys():
    assert digest({"a": 1, "b": [1, 2]}) == digest({"b": [1, 2], "a": 1})
    assert digest({"b": [2, 1]}) != digest({"b": [1, 2]})
    assert len(digest("")) == 16

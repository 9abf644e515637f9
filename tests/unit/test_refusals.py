from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.factories import b300, deployment, engine_of, parsed
from tests.policies import ROWS
from tests.policies.engines import HARDWARE, SITU_30, SITU_31, engine, found

from kimi_k3_operator.api.parse import parse_deployment
from kimi_k3_operator.api.refusal import Refusal
from kimi_k3_operator.plan.unserved import unserved
from kimi_k3_operator.profiles.engine import EngineConfig
from kimi_k3_operator.profiles.flags import FlagTable
from kimi_k3_operator.profiles.refusals import POLICIES, PolicyRow, judge
from kimi_k3_operator.profiles.refusals.frontend import RUST_STOPS_ON
from kimi_k3_operator.profiles.refusals.versioned import ALL2ALL_BACKENDS, ATTENTION_KEYS, MOE_BACKENDS, known_in

VERSIONS = FlagTable.load().versions
IDS = [policy for policy, _, _ in ROWS]


@pytest.mark.parametrize(("policy", "wrong", "right"), ROWS, ids=IDS)
def test_a_policy_speaks_up_where_it_holds_and_nowhere_else(policy: str, wrong: EngineConfig, right: EngineConfig):
    assert policy in found(wrong)
    assert policy not in found(right)


@pytest.mark.parametrize("row", POLICIES, ids=lambda row: row.id)
def test_a_policy_is_silent_on_the_versions_it_does_not_name(row: PolicyRow):
    wrong = [engine for policy, engine, _ in ROWS if policy == row.id]
    assert wrong
    others = [version for version in VERSIONS if not row.applies_to(version)]
    assert not any(row.id in found(replace(wrong[0], engine_version=version)) for version in others)


@pytest.mark.parametrize("hardware", HARDWARE)
@pytest.mark.parametrize("drafted", [False, True])
def test_the_packaged_profiles_are_neither_refused_nor_warned_about(hardware: str, drafted: bool):
    assert found(engine(hardware, drafted=drafted)) == []


def test_a_newer_image_of_an_amd_profile_needs_the_other_variable():
    assert judge(engine("mi350x", version="0.31.0"))[0][0].message == (
        f"vLLM 0.31.0 reads {SITU_31}=a8w4, not {SITU_30}; the wrong name gives wrong answers"
    )


def test_the_computed_capacity_follows_the_cache_type_and_the_draft():
    def said(**made: Any) -> str:
        return next(w.message for w in judge(engine(load=(16, 131072), **made))[1] if w.id == "kv-capacity")

    assert "about 3180672 tokens, 24.3 such requests" in said()
    assert "about 1590336 tokens, 12.1 such requests" in said(kv_cache_dtype="auto")
    assert "about 2487040 tokens, 19.0 such requests" in said(drafted=True)


def test_every_flag_of_the_rust_rule_exists():
    assert [name for name in RUST_STOPS_ON if not FlagTable.load().flag_versions(name)] == []


@pytest.mark.parametrize(
    ("table", "first", "last"), [(ATTENTION_KEYS, 19, 24), (MOE_BACKENDS, 17, 24), (ALL2ALL_BACKENDS, 12, 13)]
)
def test_the_tables_of_values_hold_what_each_release_has(table: dict[str, str], first: int, last: int):
    assert (len(known_in(table, VERSIONS[0])), len(known_in(table, VERSIONS[-1]))) == (first, last)


def test_what_is_not_set_is_no_mistake():
    made = engine()
    bare = {k: v for k, v in made.args.items() if k not in ("prefix-match-unit", "max-model-len")}
    assert found(replace(made, args=bare)) == []


def test_the_table_is_unique_and_every_refusal_says_what_to_do():
    assert len({row.id for row in POLICIES}) == len(POLICIES)
    assert all(row.fix for row in POLICIES)


def test_a_refusal_names_the_pool_and_reads_as_a_sentence():
    (refusal,) = judge(engine(max_num_batched_tokens=512))[0]
    assert refusal.field == "spec.pools[b300]"
    assert str(refusal).startswith("spec.pools[b300]: max-num-batched-tokens 512 is below")
    assert str(refusal).endswith("; raise max-num-batched-tokens or lower max-num-seqs")
    assert str(Refusal("x", "a sentence")) == "a sentence"


def test_a_warning_is_kept_beside_the_engine():
    draft = {"id": "RedHatAI/Kimi-K3-speculator.dspark", "path": "/d"}
    made = engine_of(deployment(b300(speculation={"mode": "DSpark", "draft": draft})))
    assert [warning.id for warning in made.warnings] == ["unverified-draft"]


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"routing": {"gateway": {"name": "public"}}}, "spec.routing.gateway"),
        ({"routing": {"pooling": "PerPool"}}, "spec.routing.pooling"),
        ({"verification": {"tier": "Behaviour"}}, "spec.verification.tier"),
        ({"verification": {"profile": "moonshot"}}, "spec.verification.profile"),
        ({"placement": {"mode": "Kueue", "queueName": "q"}}, "spec.placement"),
        ({"placement": {"queueName": "q"}}, "spec.placement"),
        ({"rollout": {"updates": "Automatic"}}, "spec.rollout.updates"),
    ],
)
def test_a_field_without_effect_in_this_release_is_refused(spec: dict[str, Any], field: str):
    assert [refusal.field for refusal in unserved(parsed(deployment(**spec)).spec)] == [field]


def test_a_field_with_effect_is_not():
    body = deployment(placement={"mode": "Planner"}, rollout={"maxUnavailable": 2})
    assert unserved(parsed(body).spec) == ()


def test_prefill_and_decode_apart_are_refused_by_pool():
    pool = {
        "name": "gb300",
        "profile": {"name": "gb300"},
        "disaggregation": {"prefill": {"replicas": 1}, "decode": {"replicas": 1}},
    }
    (refusal,) = unserved(parse_deployment(deployment(pool)).spec)  # type: ignore[union-attr]
    assert refusal.field == "spec.pools[gb300].disaggregation"

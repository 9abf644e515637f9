from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.factories import b300, deployment, engine_of, parsed

from kimi_k3_operator.api.parse import parse_deployment
from kimi_k3_operator.api.refusal import Refusal
from kimi_k3_operator.plan.unserved import unserved
from kimi_k3_operator.profiles.engine import EngineConfig
from kimi_k3_operator.profiles.refusals import POLICIES, judge

DRAFTED = {"mode": "DSpark", "draft": {"id": "Inferact/Kimi-K3-DSpark", "path": "/d"}}


def engine(*, drafted: bool = False, version: str = "0.30.0", draft: str = "", **args: Any) -> EngineConfig:
    """The engine of a B300 pool with other flags, version or draft."""
    made = engine_of(deployment(b300(speculation=DRAFTED) if drafted else b300()))
    speculation = replace(made.speculation, draft=draft) if draft else made.speculation
    flags = {name.replace("_", "-"): value for name, value in args.items()}
    return replace(made, args={**made.args, **flags}, engine_version=version, speculation=speculation)


def found(made: EngineConfig) -> list[str]:
    refusals, warnings = judge(made)
    return [r.id for r in (*refusals, *warnings)]


ROWS: list[tuple[str, EngineConfig, EngineConfig]] = [
    ("tensor-parallel-gpus", engine(tensor_parallel_size=4), engine(tensor_parallel_size=8)),
    (
        "tensor-parallel-gpus",
        engine(pipeline_parallel_size=2),
        engine(tensor_parallel_size=4, pipeline_parallel_size=2),
    ),
    ("batched-tokens", engine(max_num_batched_tokens=512), engine(max_num_batched_tokens=8192)),
    (
        "batched-tokens",
        engine(drafted=True, max_num_batched_tokens=2048, max_num_seqs=512),
        engine(drafted=True, max_num_batched_tokens=8192, max_num_seqs=512),
    ),
    ("prefix-match-unit", engine(prefix_match_unit=100), engine(prefix_match_unit="64")),
    ("max-model-len", engine(max_model_len=2_000_000), engine(max_model_len=1_048_576)),
    ("max-model-len", engine(max_model_len=1000), engine(max_model_len=1024)),
    (
        "dspark-with-dcp",
        engine(drafted=True, version="0.28.0", decode_context_parallel_size=2),
        engine(drafted=True, version="0.30.0", decode_context_parallel_size=2),
    ),
    (
        "dspark-with-dcp",
        engine(drafted=True, version="0.28.0", decode_context_parallel_size=2),
        engine(version="0.28.0", decode_context_parallel_size=2),
    ),
    ("foreign-draft", engine(drafted=True, draft="RadixArk/K3-draft"), engine(draft="RadixArk/K3-draft")),
    (
        "unverified-draft",
        engine(drafted=True, draft="RedHatAI/Kimi-K3-speculator.dspark"),
        engine(draft="RedHatAI/Kimi-K3-speculator.dspark"),
    ),
    ("kv-block", engine(kv_cache_dtype="int3"), engine(kv_cache_dtype="fp8")),
    ("kv-block", engine(mamba_ssm_cache_dtype="int3"), engine(mamba_ssm_cache_dtype="bfloat16")),
    ("kv-block", engine(tensor_parallel_size=5), engine(tensor_parallel_size=8)),
]


@pytest.mark.parametrize(("policy", "wrong", "right"), ROWS)
def test_a_policy_speaks_up_where_it_holds_and_nowhere_else(policy: str, wrong: EngineConfig, right: EngineConfig):
    assert policy in found(wrong)
    assert policy not in found(right)


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
        ({"routing": {}}, "spec.routing"),
        ({"verification": {}}, "spec.verification"),
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

"""What a policy refuses for the engine's sake, the engine refuses; what lies just beside it, both take."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from kimi_k3_operator.profiles.engine import EngineConfig
from kimi_k3_operator.profiles.flags import FlagTable
from kimi_k3_operator.profiles.refusals import POLICIES

from .lines import Ask, Line, answers, packaged

pytestmark = pytest.mark.engine

B300 = packaged("b300")[0]
VERSIONS = FlagTable.load().versions


@dataclass(frozen=True)
class Rule:
    """A refused line, the releases that refuse it, words of their refusal, and the nearest line that they take."""

    refused: Line
    near: Line
    versions: tuple[str, ...] = VERSIONS
    words: str = ""


RULES = {
    "kv-block": Rule(
        Line(B300, args=(("kv-cache-dtype", "nvfp4"),)),
        Line(B300, args=(("kv-cache-dtype", "bfloat16"),)),
        words="nvfp4",
    ),
    "batched-tokens": Rule(
        Line(B300, args=(("max-num-batched-tokens", "15"), ("max-num-seqs", "16"))),
        Line(B300, args=(("max-num-batched-tokens", "1552"), ("max-num-seqs", "16"))),
        words="max_num_batched_tokens",
    ),
    "max-model-len": Rule(
        Line(B300, args=(("max-model-len", "1048577"),)),
        Line(B300, args=(("max-model-len", "1048576"),)),
        words="max_model_len",
    ),
    "dspark-with-dcp": Rule(
        Line(B300, speculation="DSpark", args=(("decode-context-parallel-size", "8"),)),
        Line(B300, speculation="DSpark", args=(("decode-context-parallel-size", "1"),)),
        versions=("0.28.0",),
        words="decode context parallelism",
    ),
}
"""By policy: rules that show before a GPU is needed."""

NOT_SEEN_HERE = {
    "tensor-parallel-gpus": "the engine does not know how many GPUs its pod asked for",
    "prefix-match-unit": "the engine looks at it when the weights are loaded",
    "foreign-draft": "the draft's weights decide",
    "unverified-draft": "the draft's weights decide",
}

every_rule = pytest.mark.parametrize("identity", RULES)
every_version = pytest.mark.parametrize("version", VERSIONS)


def test_every_policy_is_accounted_for():
    assert {policy.id for policy in POLICIES} == {*RULES, *NOT_SEEN_HERE}


@every_rule
@every_version
def test_the_engine_refuses_what_a_policy_refuses(ask: Ask, identity: str, version: str):
    rule = RULES[identity]
    ours = rule.refused.resolve(version)
    refusals = set() if isinstance(ours, EngineConfig) else {refusal.id for refusal in ours}
    (answer,) = answers(ask, version, rule.refused)
    if version in rule.versions:
        assert refusals == {identity}
        assert not answer["accepted"]
        assert rule.words in answer["error"]
    else:
        assert refusals == set()
        assert answer["accepted"], answer["error"]


@every_rule
@every_version
def test_both_take_the_near_miss(ask: Ask, identity: str, version: str):
    rule = RULES[identity]
    assert isinstance(rule.near.resolve(version), EngineConfig)
    (answer,) = answers(ask, version, rule.near)
    assert answer["accepted"], answer["error"]

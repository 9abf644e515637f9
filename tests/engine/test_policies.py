"""What a policy refuses for the engine's sake, the engine refuses; what lies just beside it, both take."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace

import pytest

from kimi_k3_operator.api.refusal import Refusal
from kimi_k3_operator.profiles.engine import EngineConfig
from kimi_k3_operator.profiles.flags import FlagTable
from kimi_k3_operator.profiles.refusals import POLICIES
from kimi_k3_operator.profiles.refusals.versioned import ALL2ALL_BACKENDS, ATTENTION_KEYS, MOE_BACKENDS, known_in

from .lines import Ask, Line, answers, packaged

pytestmark = pytest.mark.engine

B300 = packaged("b300")[0]
VERSIONS = FlagTable.load().versions
NO_CACHING = ("enable-prefix-caching", "false")
SHORT = ("max-model-len", "16384")


@dataclass(frozen=True)
class DraftedLine(Line):
    """A DSpark pool of a profile with other keys in its speculative configuration."""

    settings: tuple[tuple[str, str], ...] = ()

    def resolve(self, version: str | None = None) -> EngineConfig | tuple[Refusal, ...]:
        speculation = self.profile.speculation
        changed = speculation.model_copy(update={"config": {**speculation.config, **dict(self.settings)}})
        profile = self.profile.model_copy(update={"speculation": changed})
        return Line(profile, speculation="DSpark", args=self.args).resolve(version)

    def rendered(self) -> EngineConfig:
        known = Line(self.profile, speculation="DSpark", args=self.args).rendered()
        config = known.args["speculative-config"]
        assert isinstance(config, dict)
        return replace(known, args={**known.args, "speculative-config": {**config, **dict(self.settings)}})


def with_draft_settings(*args: tuple[str, str], **settings: str) -> Line:
    return DraftedLine(B300, speculation="DSpark", args=args, settings=tuple(settings.items()))


def pipelined(speculation: str = "Off") -> Line:
    """A pool of a profile with 2 stages of 4 GPUs."""
    args = {**B300.engine.args, "tensor-parallel-size": 4, "pipeline-parallel-size": 2}
    engine = B300.engine.model_copy(update={"args": args})
    return Line(B300.model_copy(update={"engine": engine}), speculation=speculation)


def overriding(*args: tuple[str, str], speculation: str = "Off", env: tuple[tuple[str, str], ...] = ()) -> Line:
    return Line(B300, speculation=speculation, args=args, env=env)


@dataclass(frozen=True)
class Rule:
    """A refused line, the releases that refuse it, words of their refusal, and the nearest line that they take."""

    refused: Line
    near: Line
    versions: tuple[str, ...] = VERSIONS
    words: str = ""
    before: tuple[str, ...] = ()
    """Releases that take the line, or fail only when the model is loaded, and that we keep it from all the same."""


RULES = {
    "kv-cache-dtype": Rule(
        overriding(("kv-cache-dtype", "nvfp4")), overriding(("kv-cache-dtype", "bfloat16")), words="nvfp4"
    ),
    "batched-tokens": Rule(
        overriding(("max-num-batched-tokens", "15"), ("max-num-seqs", "16")),
        overriding(("max-num-batched-tokens", "1552"), ("max-num-seqs", "16")),
        words="max_num_batched_tokens",
    ),
    "max-model-len": Rule(
        overriding(("max-model-len", "1048577")), overriding(("max-model-len", "1048576")), words="max_model_len"
    ),
    "dspark-with-dcp": Rule(
        overriding(("decode-context-parallel-size", "8"), speculation="DSpark"),
        overriding(("decode-context-parallel-size", "1"), speculation="DSpark"),
        versions=("0.28.0",),
        words="decode context parallelism",
    ),
    "dspark-with-pp": Rule(pipelined("DSpark"), pipelined(), versions=("0.28.0", "0.29.0"), words="ipeline"),
    "dspark-with-v1-runner": Rule(
        overriding(speculation="DSpark", env=(("VLLM_USE_V2_MODEL_RUNNER", "0"),)),
        overriding(speculation="DSpark", env=(("VLLM_USE_V2_MODEL_RUNNER", "1"),)),
        versions=VERSIONS[1:],
        words="Model Runner V1",
        before=("0.28.0",),
    ),
    "draft-tensor-parallel": Rule(
        with_draft_settings(draft_tensor_parallel_size="4"),
        with_draft_settings(draft_tensor_parallel_size="8"),
        words="draft_tensor_parallel_size",
    ),
    "draft-sampling": Rule(
        with_draft_settings(draft_sample_method="random"),
        with_draft_settings(draft_sample_method="greedy"),
        words="draft_sample_method",
    ),
    "speculation-key": Rule(
        with_draft_settings(drafts="1"), with_draft_settings(kv_cache_dtype="auto"), words="drafts"
    ),
    "adaptive-verification-graphs": Rule(
        with_draft_settings(("enforce-eager", ""), enable_adaptive_verification="true"),
        with_draft_settings(enable_adaptive_verification="true"),
        words="daptive",
    ),
    "replayssm-with-draft": Rule(
        overriding(("use-replayssm", ""), speculation="DSpark"),
        overriding(speculation="DSpark"),
        versions=("0.28.0",),
        words="use-replayssm",
    ),
    "replayssm-without-draft": Rule(
        overriding(("use-replayssm", "")), overriding(), versions=VERSIONS[2:], before=("0.29.0",), words="ReplaySSM"
    ),
    "dcp-divides-tp": Rule(
        overriding(("decode-context-parallel-size", "3")),
        overriding(("decode-context-parallel-size", "4")),
        words="divisible by dcp_size",
    ),
    "dcp-communication": Rule(
        overriding(("dcp-comm-backend", "nccl")),
        overriding(("dcp-comm-backend", "a2a"), ("decode-context-parallel-size", "8")),
        words="--dcp-comm-backend",
    ),
    "mamba-block-without-caching": Rule(
        overriding(NO_CACHING, ("mamba-block-size", "1024")),
        overriding(("mamba-block-size", "1024")),
        words="--mamba-block-size",
    ),
    "caching-needs-chunks": Rule(
        overriding(("enable-chunked-prefill", "false"), SHORT),
        overriding(NO_CACHING, ("enable-chunked-prefill", "false"), SHORT),
        words="hunked prefill",
    ),
    "chunked-prefill-off": Rule(
        overriding(NO_CACHING, ("enable-chunked-prefill", "false")),
        overriding(NO_CACHING, ("enable-chunked-prefill", "false"), SHORT),
        words="max_num_batched_tokens",
    ),
    "attention-config-key": Rule(
        overriding(("attention-config", '{"mla_decode":1}')),
        overriding(("attention-config", '{"backend":"TRITON_MLA"}')),
        words="mla_decode",
    ),
    "attention-backend-twice": Rule(
        overriding(("attention-backend", "TRITON_MLA"), ("attention-config", '{"backend":"TRITON_MLA"}')),
        overriding(("attention-backend", "TRITON_MLA")),
        words="mutually exclusive",
    ),
    "moe-backend": Rule(
        overriding(("moe-backend", "turbo")), overriding(("moe-backend", "marlin")), words="--moe-backend"
    ),
    "all2all-backend": Rule(
        overriding(("all2all-backend", "turbo")),
        overriding(("all2all-backend", "flashinfer_nvlink_one_sided")),
        words="--all2all-backend",
    ),
    "kda-backend": Rule(
        overriding(("kda-prefill-backend", "fused")),
        overriding(("kda-prefill-backend", "triton")),
        words="kda-prefill-backend",
    ),
    "log-outputs": Rule(
        overriding(("enable-log-outputs", "")),
        overriding(("enable-log-outputs", ""), ("enable-log-requests", "")),
        words="--enable-log-requests",
    ),
}
"""By policy: rules that show before a GPU is needed."""

NOT_SEEN_HERE = {
    "it shows when the model is loaded or kernels are chosen": (
        "adaptive-verification-alone", "attention-backend", "block-size", "draft-attention", "hybrid-manager-off",
        "interleave-size", "interleave-with-draft", "load-format", "mega-moe-expert-parallel", "mega-moe-hardware",
        "memory-share-too-low", "model-dtype", "prefill-backend", "prefix-match-unit", "quantization",
        "retention-interval", "specialized-decode", "ssm-cache-dtype", "tokenspeed-needs-fp8",
    ),
    "it needs an AMD GPU": (
        "aiter-off", "breakable-graphs-on-rocm", "dcp-on-rocm", "fp8-kv-on-amd", "situ-variable",
    ),
    "the weights of the draft decide": ("draft-tokens", "foreign-draft", "mtp-without-weights", "speculation-method"),
    "no pool can ask for a KV connector": (
        "expandable-segments", "hybrid-connector", "kv-events-port", "nixl-state-layout", "nixl-with-dcp",
        "nixl-with-pp",
    ),
    "the engine takes it, and serves what nobody wants": (
        "batch-limits", "developer-endpoints", "memory-share-twice", "random-weights",
    ),
    "it is about the pods around the engine, or several ranks": (
        "allreduce-over-nodes", "api-servers-of-a-group", "kv-block", "pipeline-with-v1-runner", "tensor-parallel-gpus",
    ),
    "another program than this parser refuses it": ("rust-frontend",),
}  # fmt: skip
"""Refusals that cannot be asked about here, by reason. Warnings are about what the engine takes."""

TABLES = {"moe-backend": MOE_BACKENDS, "all2all-backend": ALL2ALL_BACKENDS}

every_rule = pytest.mark.parametrize("identity", RULES)
every_version = pytest.mark.parametrize("version", VERSIONS)


def test_every_policy_is_accounted_for():
    not_seen = [identity for identities in NOT_SEEN_HERE.values() for identity in identities]
    assert sorted([*RULES, *not_seen]) == sorted(row.id for row in POLICIES if row.severity == "refusal")


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
    elif version in rule.before:
        assert refusals == {identity}
        assert answer["accepted"], answer["error"]
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


@pytest.mark.parametrize("flag", TABLES)
@every_version
def test_a_table_of_values_is_the_parsers(ask: Ask, flag: str, version: str):
    (answer,) = answers(ask, version, overriding((flag, "turbo")))
    choices = re.findall(r"'([a-z0-9_]+)'", answer["error"].partition("choose from")[2])
    assert set(choices) == known_in(TABLES[flag], version)


@every_version
def test_the_attention_settings_are_the_parsers(ask: Ask, version: str):
    settings = json.dumps({name: {"wrong": 1} for name in ATTENTION_KEYS})
    (answer,) = answers(ask, version, overriding(("attention-config", settings)))
    unknown = re.findall(r"(\w+)\s+Unexpected keyword argument", answer["error"])
    assert set(ATTENTION_KEYS) - set(unknown) == known_in(ATTENTION_KEYS, version)

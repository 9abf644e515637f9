"""Combinations that must not reach a GPU: one small function each, with the vLLM versions it holds for.

A policy looks at one resolved engine and returns a sentence, or None. The table is documentation as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from packaging.specifiers import SpecifierSet

from kimi_k3_operator.api.refusal import Refusal
from kimi_k3_operator.profiles.blocks import kv_block_tokens
from kimi_k3_operator.profiles.engine import EngineConfig

Policy = Callable[[EngineConfig], str | None]


@dataclass(frozen=True)
class PolicyRow:
    id: str
    engines: SpecifierSet
    severity: Literal["refusal", "warning"]
    check: Policy
    fix: str
    link: str

    def applies_to(self, version: str) -> bool:
        return self.engines.contains(version)


POLICIES: list[PolicyRow] = []


def refusal(identity: str, *, engines: str = "", fix: str = "", link: str = "") -> Callable[[Policy], Policy]:
    """Register a policy that refuses; `engines` is a version specifier, empty for all."""
    return _register(identity, "refusal", engines, fix, link)


def warning(identity: str, *, engines: str = "", fix: str = "", link: str = "") -> Callable[[Policy], Policy]:
    """Register a policy that only warns."""
    return _register(identity, "warning", engines, fix, link)


def _register(
    identity: str, severity: Literal["refusal", "warning"], engines: str, fix: str, link: str
) -> Callable[[Policy], Policy]:
    def keep(policy: Policy) -> Policy:
        POLICIES.append(PolicyRow(identity, SpecifierSet(engines), severity, policy, fix, link))
        return policy

    return keep


def judge(engine: EngineConfig) -> tuple[tuple[Refusal, ...], tuple[Refusal, ...]]:
    """(refusals, warnings) of all policies for the engine's version."""
    found: dict[str, list[Refusal]] = {"refusal": [], "warning": []}
    for row in POLICIES:
        if row.applies_to(engine.engine_version) and (message := row.check(engine)) is not None:
            found[row.severity].append(Refusal(row.id, message, f"spec.pools[{engine.pool}]", row.fix, row.link))
    return tuple(found["refusal"]), tuple(found["warning"])


def _block(engine: EngineConfig) -> int:
    return kv_block_tokens(
        tensor_parallel=engine.int_arg("tensor-parallel-size", 8),
        kv_cache_dtype=str(engine.args.get("kv-cache-dtype", "auto")),
        draft_tokens=engine.speculation.tokens,
        ssm_dtype=str(engine.args.get("mamba-ssm-cache-dtype", "auto")),
    )


@refusal("kv-block", fix="remove the override; the profile's value works")
def kv_block_can_be_computed(engine: EngineConfig) -> str | None:
    try:
        _block(engine)
    except ValueError as error:
        return str(error)
    return None


@refusal("tensor-parallel-gpus", fix="leave tensor-parallel-size to the profile")
def tensor_parallel_matches_gpus(engine: EngineConfig) -> str | None:
    ranks = engine.int_arg("tensor-parallel-size", 1) * engine.int_arg("pipeline-parallel-size", 1)
    gpus = engine.profile.hardware.gpus_per_replica
    return None if ranks == gpus else f"the engine would start {ranks} ranks on the {gpus} GPUs of a replica"


@refusal("batched-tokens", fix="raise max-num-batched-tokens or lower max-num-seqs")
def batched_tokens_hold_a_block(engine: EngineConfig) -> str | None:
    if kv_block_can_be_computed(engine) is not None:
        return None
    block, tokens = _block(engine), engine.int_arg("max-num-batched-tokens")
    least = block + (engine.speculation.tokens + 1) * engine.int_arg("max-num-seqs")
    if tokens >= least:
        return None
    return (
        f"max-num-batched-tokens {tokens} is below {least} (a KV block of {block} tokens and "
        f"{engine.speculation.tokens + 1} for each sequence), which splits blocks and yields wrong numbers"
    )


@refusal("prefix-match-unit", fix="use 16, 32, 64 or 128")
def prefix_match_unit_divides_every_block(engine: EngineConfig) -> str | None:
    unit = engine.args.get("prefix-match-unit")
    if unit is None or str(unit) in ("16", "32", "64", "128"):
        return None
    return f"prefix-match-unit {unit} does not divide every KV block of K3"


@refusal("max-model-len", fix="use at most 1048576")
def model_length_in_range(engine: EngineConfig) -> str | None:
    length = engine.int_arg("max-model-len", 1048576)
    return None if 1024 <= length <= 1048576 else f"max-model-len {length} is outside of what Kimi K3 serves"


@refusal(
    "dspark-with-dcp", engines="<0.29", link="https://github.com/vllm-project/vllm/pull/52269",
    fix="set speculation.mode: Off, or remove decode-context-parallel-size",
)  # fmt: skip
def dspark_with_dcp(engine: EngineConfig) -> str | None:
    if engine.speculation.tokens and engine.int_arg("decode-context-parallel-size", 1) > 1:
        return "vLLM refuses DSpark together with decode context parallelism"
    return None


@refusal("foreign-draft", fix="use Inferact/Kimi-K3-DSpark")
def draft_of_another_engine(engine: EngineConfig) -> str | None:
    if engine.speculation.tokens and engine.speculation.draft.startswith("RadixArk/"):
        return f"{engine.speculation.draft} is a draft for another engine"
    return None


@warning("unverified-draft", fix="prefer Inferact/Kimi-K3-DSpark")
def draft_of_unknown_form(engine: EngineConfig) -> str | None:
    if engine.speculation.tokens and engine.speculation.draft.startswith("RedHatAI/"):
        return f"the configuration format of {engine.speculation.draft} is unverified on vLLM"
    return None

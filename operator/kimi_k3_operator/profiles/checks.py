"""Rules that a profile keeps beyond its types. Each function yields sentences that name the field."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kimi_k3_operator.profiles.documents import leaves, nearest, speaks_for
from kimi_k3_operator.profiles.flags import FlagTable
from kimi_k3_operator.profiles.model import Profile

MAX_DRAFT_TOKENS = 7
"""Eight draft tokens leave the fused KDA verification kernel and change the KV block (vLLM wheels 0.28 to 0.33)."""

OPERATOR_ARGS = frozenset(
    {
        "headless", "host", "kv-transfer-config", "master-addr", "master-port", "model", "nnodes", "node-rank", "port",
        "revision", "served-model-name", "shutdown-timeout", "speculative-config", "spec-method", "spec-model",
        "spec-tokens",
    }
)  # fmt: skip
"""Flags that follow from the deployment, the rank or other sections of the profile; the operator renders them."""

OPERATOR_ENV = frozenset({"VLLM_ENGINE_READY_TIMEOUT_S", "VLLM_NIXL_SIDE_CHANNEL_HOST", "VLLM_NIXL_SIDE_CHANNEL_PORT"})

Check = Callable[[Profile, Mapping[str, Any]], Iterator[str]]


def violations(profile: Profile, document: Mapping[str, Any]) -> list[str]:
    """Everything wrong with a well-typed profile; `document` is the resolved mapping that it was made from."""
    return [sentence for check in CHECKS for sentence in check(profile, document)]


def argument_sections(profile: Profile) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every place that holds engine flags, with its dotted path."""
    yield "engine.args", profile.engine.args
    for position, band in enumerate(profile.bands):
        yield f"bands.{position}.args", band.args
    if profile.disaggregation:
        yield "disaggregation.args", profile.disaggregation.args
        yield "disaggregation.prefill.args", profile.disaggregation.prefill.args
        yield "disaggregation.decode.args", profile.disaggregation.decode.args


def environment_sections(profile: Profile) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Every place that holds environment variables, with its dotted path."""
    yield "engine.env", profile.engine.env
    if profile.disaggregation:
        yield "disaggregation.env", profile.disaggregation.env


def engine_is_supported(profile: Profile, document: Mapping[str, Any]) -> Iterator[str]:
    table = FlagTable.load()
    if not table.supports(profile.engine.version):
        yield f"field engine.version: vLLM {profile.engine.version} is not supported ({', '.join(table.versions)} are)"


def flags_are_known(profile: Profile, document: Mapping[str, Any]) -> Iterator[str]:
    """Names are bare (`prefix-match-unit`), known to the pinned version and not the operator's own."""
    table, version = FlagTable.load(), profile.engine.version
    if not table.supports(version):
        return
    for path, args in argument_sections(profile):
        for name in args:
            if name.startswith(("-", "no-")) or "_" in name:
                yield f"field {path}.{name}: write the flag without dashes in front, without no- and with - for _"
            elif name in OPERATOR_ARGS:
                yield f"field {path}.{name}: the operator sets this flag itself"
            elif not table.knows_flag(name, version):
                hint = _hint(table.suggest(name, version))
                yield f"field {path}.{name}: vLLM {version} does not know the flag --{name}{hint}"


def variables_are_known(profile: Profile, document: Mapping[str, Any]) -> Iterator[str]:
    """Only names in the engine's own namespace can be judged; any other variable may belong to some library."""
    table, version = FlagTable.load(), profile.engine.version
    if not table.supports(version):
        return
    for path, env in environment_sections(profile):
        for name in env:
            if name in OPERATOR_ENV:
                yield f"field {path}.{name}: the operator sets this variable itself"
            elif table.owns_env(name) and not table.knows_env(name, version):
                hint = _hint(table.suggest(name, version))
                yield f"field {path}.{name}: vLLM {version} does not know the variable {name}{hint}"


def bands_ascend(profile: Profile, document: Mapping[str, Any]) -> Iterator[str]:
    limits = [band.max_concurrency for band in profile.bands]
    if limits != sorted(set(limits)):
        yield f"field bands: maxConcurrency must rise from band to band, got {limits}"


def batches_are_bounded(profile: Profile, document: Mapping[str, Any]) -> Iterator[str]:
    """The engine's own defaults do not fit Kimi K3's per-request state, so both limits are always stated."""
    for position, band in enumerate(profile.bands):
        for name in ("max-num-seqs", "max-num-batched-tokens"):
            if name not in {**profile.engine.args, **band.args}:
                yield f"field bands.{position}.args: neither the band nor engine.args states {name}"


def draft_tokens_fit(profile: Profile, document: Mapping[str, Any]) -> Iterator[str]:
    """At most 7 draft tokens, and no more than the default draft was trained for: the engine does not check that."""
    spec = profile.speculation
    if not spec.drafts:
        if spec.auto:
            yield "field speculation.auto: rules need at least one draft in speculation.drafts"
        return
    limit = min(MAX_DRAFT_TOKENS, spec.drafts[0].block_size)
    stated = [("speculation.explicitTokens", spec.explicit_tokens)]
    stated += [(f"speculation.auto.{position}.tokens", rule.tokens) for position, rule in enumerate(spec.auto)]
    for path, tokens in stated:
        if not 1 <= tokens <= limit:
            yield f"field {path}: {tokens} is not between 1 and {limit}, the limit of draft {spec.drafts[0].id}"


def disaggregation_is_decided(profile: Profile, document: Mapping[str, Any]) -> Iterator[str]:
    if (profile.disaggregation is None) == (profile.disaggregation_refusal is None):
        yield "field disaggregation: state either disaggregation or disaggregationRefusal"


def domains_are_named(profile: Profile, document: Mapping[str, Any]) -> Iterator[str]:
    if profile.hardware.multi_node != bool(profile.hardware.domain_labels):
        yield "field hardware.domainLabels: needed exactly when a replica spans several nodes"


def selection_is_complete(profile: Profile, document: Mapping[str, Any]) -> Iterator[str]:
    for position, alternative in enumerate(profile.hardware.node_selection):
        if not alternative:
            yield f"field hardware.nodeSelection.{position}: an empty alternative would match every node"
        for requirement in alternative:
            if (requirement.operator == "In") != bool(requirement.values):
                yield f"field hardware.nodeSelection.{position}: {requirement.key} takes values with In alone"


def sources_are_complete(profile: Profile, document: Mapping[str, Any]) -> Iterator[str]:
    paths = list(leaves(document))
    for path in paths:
        if nearest(path, profile.provenance) is None:
            yield f"field provenance: no source for {path}"
    for entry, source in profile.provenance.items():
        if not speaks_for(entry, paths):
            yield f"field provenance.{entry}: the profile has no such value"
        if source.kind == "measured" and source.engine is None:
            yield f"field provenance.{entry}: a measured value names the engine build it was measured on"
        if source.carried_over != (source.engine is not None and source.engine != profile.engine.version):
            pinned = profile.engine.version
            yield f"field provenance.{entry}: carriedOver is true exactly when engine differs from {pinned}"


def _hint(name: str | None) -> str:
    return f"; did you mean {name}" if name else ""


CHECKS: tuple[Check, ...] = (
    engine_is_supported,
    flags_are_known,
    variables_are_known,
    bands_ascend,
    batches_are_bounded,
    draft_tokens_fit,
    disaggregation_is_decided,
    domains_are_named,
    selection_is_complete,
    sources_are_complete,
)

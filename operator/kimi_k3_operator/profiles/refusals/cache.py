"""Prefix caching, KV blocks and what is built upon them."""

from __future__ import annotations

from kimi_k3_operator.profiles.engine import EngineConfig
from kimi_k3_operator.profiles.refusals.attention import cache_dtype_is_usable, state_dtype_is_usable
from kimi_k3_operator.profiles.refusals.settings import (
    before,
    decode_context_parallel,
    is_on,
    kv_block,
    kv_block_or_none,
    kv_cache_dtype,
    mapping,
    prefix_caching,
    word,
)
from kimi_k3_operator.profiles.refusals.table import refusal, warning


@refusal("kv-block", fix="remove the override; the profile's value works")
def kv_block_can_be_computed(engine: EngineConfig) -> str | None:
    if cache_dtype_is_usable(engine) or state_dtype_is_usable(engine):
        return None
    try:
        kv_block(engine)
    except ValueError as error:
        return f"there is no KV block: {error}"
    return None


@refusal("block-size", fix="remove block-size", at="overrides.args.block-size")
def block_size_is_the_engines(engine: EngineConfig) -> str | None:
    if "block-size" not in engine.args:
        return None
    block = kv_block_or_none(engine)
    return f"the engine derives the KV block from the KDA state ({block} tokens here) and may override any other size"


@refusal("prefix-match-unit", fix="use 16, 32, 64 or 128", at="overrides.args.prefix-match-unit")
def prefix_match_unit_divides_every_block(engine: EngineConfig) -> str | None:
    unit = engine.args.get("prefix-match-unit")
    if unit is None or str(unit) in ("16", "32", "64", "128"):
        return None
    return f"prefix-match-unit {unit} does not divide every KV block of K3"


@refusal("hybrid-manager-off", fix="remove disable-hybrid-kv-cache-manager")
def hybrid_manager_is_on(engine: EngineConfig) -> str | None:
    if engine.args.get("disable-hybrid-kv-cache-manager") is True:
        return "without the hybrid KV cache manager Kimi K3 does not start: it keeps KDA state beside attention KV"
    return None


@refusal("mamba-block-without-caching", fix="remove mamba-block-size, or keep prefix caching on")
def mamba_block_needs_caching(engine: EngineConfig) -> str | None:
    size = engine.int_arg("mamba-block-size")
    if size and size != engine.int_arg("max-model-len") and not prefix_caching(engine):
        return "mamba-block-size needs prefix caching"
    return None


@refusal("caching-needs-chunks", fix="keep both on, or turn prefix caching off as well")
def caching_needs_chunked_prefill(engine: EngineConfig) -> str | None:
    if not prefix_caching(engine):
        return None
    if engine.args.get("enable-chunked-prefill") is False:
        return "prefix caching of Kimi K3 needs chunked prefill, which is turned off"
    if engine.args.get("disable-chunked-mm-input") is True:
        return "prefix caching of Kimi K3 needs chunked images, which disable-chunked-mm-input turns off"
    return None


@refusal("retention-interval", fix="use 0 or a multiple of the KV block")
def retention_interval_is_whole_blocks(engine: EngineConfig) -> str | None:
    name = "prefix-cache-retention-interval"
    text = word(engine, name) or engine.env.get("VLLM_PREFIX_CACHE_RETENTION_INTERVAL", "0")
    block = kv_block_or_none(engine)
    if block is None or not prefix_caching(engine):
        return None
    block *= decode_context_parallel(engine)
    if text.isdecimal() and int(text) % block == 0:
        return None
    return f"{name} {text} is not a multiple of the {block} tokens in which the engine schedules"


_WITHOUT_EFFECT = ("prefix-match-unit", "prefix-cache-retention-interval", "enable-mamba-shared-prefix-checkpoint")


@warning("needs-prefix-caching", fix="unset them as well, or keep prefix caching on")
def without_caching_there_is_nothing_to_keep(engine: EngineConfig) -> str | None:
    if prefix_caching(engine):
        return None
    idle = [name for name in _WITHOUT_EFFECT if engine.args.get(name) not in (None, False)]
    if is_on(mapping(engine, "kv-events-config").get("enable_kv_cache_events", False)):
        idle.append("kv-events-config")
    return f"prefix caching is off, which leaves without effect: {', '.join(idle)}" if idle else None


@warning("prefix-caching-off", fix="keep enable-prefix-caching; replies to long conversations start much later without")
def caching_is_kept(engine: EngineConfig) -> str | None:
    return None if prefix_caching(engine) else "prefix caching is off, so every turn computes its whole prompt anew"


@refusal("interleave-with-draft", fix="remove the interleave size, or use TOKENSPEED_MLA on vLLM 0.32")
def interleave_with_a_draft(engine: EngineConfig) -> str | None:
    size = interleave(engine)
    if not engine.speculation.tokens or decode_context_parallel(engine) < 2 or size < 2:
        return None
    able = word(engine, "attention-backend").upper() == "TOKENSPEED_MLA" and not before(engine, "0.32")
    return None if able else f"no attention backend verifies draft tokens with an interleave size of {size}"


@refusal("interleave-size", fix="use a size that divides the KV block")
def interleave_divides_the_block(engine: EngineConfig) -> str | None:
    block, size = kv_block_or_none(engine), interleave(engine)
    if block is None or decode_context_parallel(engine) < 2 or block % size == 0:
        return None
    return f"an interleave size of {size} does not divide the KV block of {block} tokens ({kv_cache_dtype(engine)})"


def interleave(engine: EngineConfig) -> int:
    """Tokens in a row that one rank of decode context parallelism keeps."""
    names = ("cp-kv-cache-interleave-size", "dcp-kv-cache-interleave-size")
    return max(engine.int_arg(name, 1) for name in names)

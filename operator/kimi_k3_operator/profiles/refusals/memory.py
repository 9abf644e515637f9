"""Batches and GPU memory."""

from __future__ import annotations

from kimi_k3_operator.profiles.blocks import CACHE_BYTES
from kimi_k3_operator.profiles.engine import EngineConfig
from kimi_k3_operator.profiles.refusals.settings import (
    decode_context_parallel,
    kv_block_or_none,
    kv_cache_dtype,
    mapping,
    word,
)
from kimi_k3_operator.profiles.refusals.table import refusal, warning

GIB = 1 << 30
DEFAULT_UTILISATION = 0.92
"""What vLLM 0.28 to 0.33 take where the flag is absent."""


@refusal("batch-limits", fix="do not unset it", at="overrides.unsetArgs")
def batches_are_bounded(engine: EngineConfig) -> str | None:
    missing = [name for name in ("max-num-seqs", "max-num-batched-tokens") if name not in engine.args]
    return f"without {missing[0]} the engine takes a default that does not fit Kimi K3" if missing else None


@refusal(
    "batched-tokens", link="https://github.com/local-inference-lab/blackwell-llm-docker/issues/26",
    fix="raise max-num-batched-tokens or lower max-num-seqs",
)  # fmt: skip
def batched_tokens_hold_a_block(engine: EngineConfig) -> str | None:
    block = kv_block_or_none(engine)
    if block is None or batches_are_bounded(engine):
        return None
    tokens = engine.int_arg("max-num-batched-tokens")
    least = block + (engine.speculation.tokens + 1) * engine.int_arg("max-num-seqs")
    if tokens >= least:
        return None
    return (
        f"max-num-batched-tokens {tokens} is below {least} (a KV block of {block} tokens and "
        f"{engine.speculation.tokens + 1} for each sequence), which splits blocks and yields wrong numbers"
    )


@refusal("chunked-prefill-off", fix="keep chunked prefill, or raise max-num-batched-tokens to max-model-len")
def whole_prompts_fit_a_batch(engine: EngineConfig) -> str | None:
    tokens, length = engine.int_arg("max-num-batched-tokens"), engine.int_arg("max-model-len", 1048576)
    if engine.args.get("enable-chunked-prefill") is not False or tokens >= length:
        return None
    return f"without chunked prefill a prompt of {length} tokens does not fit a batch of {tokens}"


@refusal("max-model-len", fix="use at most 1048576")
def model_length_in_range(engine: EngineConfig) -> str | None:
    length = engine.int_arg("max-model-len", 1048576)
    return None if 1024 <= length <= 1048576 else f"max-model-len {length} is outside of what Kimi K3 serves"


@refusal("memory-share-twice", fix="set gpu-memory-utilization")
def memory_share_has_one_name(engine: EngineConfig) -> str | None:
    if "device-memory-utilization" in engine.args:
        return "device-memory-utilization is another name of gpu-memory-utilization, which would win"
    return None


@refusal("memory-share-too-low", fix="raise gpu-memory-utilization")
def weights_fit(engine: EngineConfig) -> str | None:
    share = utilisation(engine)
    weights = engine.profile.startup.weight_bytes / engine.profile.hardware.gpus_per_replica / GIB
    given = share * engine.profile.memory.gib_per_gpu
    if given > weights or "cpu-offload-gb" in engine.args:
        return None
    return f"gpu-memory-utilization {share:g} gives {given:.0f} GiB of a GPU, and the weights alone take {weights:.0f}"


@warning("memory-share-too-high", fix="lower gpu-memory-utilization")
def graphs_and_workspaces_fit(engine: EngineConfig) -> str | None:
    proven = engine.profile.engine.args.get("gpu-memory-utilization", DEFAULT_UTILISATION)
    if not isinstance(proven, int | float) or utilisation(engine) <= proven:
        return None
    return (
        f"gpu-memory-utilization {utilisation(engine):g} is above the {proven:g} of the profile; graphs, the draft and "
        "buffers outside of the engine's count may run out of memory under load"
    )


@warning("kv-capacity", fix="lower load.concurrency, add replicas, or set decode-context-parallel-size")
def long_requests_leave_no_cache(engine: EngineConfig) -> str | None:
    load = engine.load
    if load.concurrency <= 8 or load.context_tokens < 131072 or decode_context_parallel(engine) > 1:
        return None
    tokens = kv_tokens(engine)
    return (
        f"{load.concurrency} requests of {load.context_tokens} tokens at once: the KV cache of a replica holds about "
        f"{tokens} tokens, {tokens / load.context_tokens:.1f} such requests, and every turn needs its prefix in it"
    )


def kv_tokens(engine: EngineConfig) -> int:
    """Tokens that the KV cache of a replica holds without decode context parallelism, by the profile's arithmetic."""
    memory, dtype = engine.profile.memory, kv_cache_dtype(engine)
    drafted = memory.kv_tokens_with_draft if engine.speculation.tokens else None
    proven = str(engine.profile.engine.args.get("kv-cache-dtype", "auto"))
    return (drafted or memory.kv_tokens) * CACHE_BYTES.get(proven, 2) // CACHE_BYTES.get(dtype, 2)


def utilisation(engine: EngineConfig) -> float:
    """Share of a GPU's memory that the engine may use; the default where the value is no number."""
    try:
        return float(word(engine, "gpu-memory-utilization", str(DEFAULT_UTILISATION)))
    except ValueError:
        return DEFAULT_UTILISATION


@warning("performance-mode", fix="remove performance-mode and set the batch")
def performance_mode_changes_no_batch(engine: EngineConfig) -> str | None:
    mode = word(engine, "performance-mode", "balanced")
    if mode == "balanced":
        return None
    return (
        f"performance-mode {mode} changes only the batch defaults that max-num-seqs and max-num-batched-tokens replace"
    )


@refusal("random-weights", fix="remove load-format", at="overrides.args.load-format")
def weights_are_loaded(engine: EngineConfig) -> str | None:
    return "load-format dummy serves random weights" if engine.args.get("load-format") == "dummy" else None


LOAD_FORMATS = frozenset(
    {
        "auto", "dummy", "fastsafetensors", "hf", "instanttensor", "modelexpress", "runai_streamer",
        "runai_streamer_sharded", "safetensors", "sharded_state", "tensorizer",
    }
)  # fmt: skip


@refusal("load-format", fix="use auto, safetensors or fastsafetensors", at="overrides.args.load-format")
def load_format_reads_safetensors(engine: EngineConfig) -> str | None:
    name = word(engine, "load-format", "auto")
    return None if name in LOAD_FORMATS else f"no loader {name} reads the safetensors of Kimi K3"


@refusal("expandable-segments", fix="set enable-cumem-allocator, or remove PYTORCH_CUDA_ALLOC_CONF")
def connector_memory_is_exportable(engine: EngineConfig) -> str | None:
    allocator = engine.env.get("PYTORCH_CUDA_ALLOC_CONF", "") + engine.env.get("PYTORCH_ALLOC_CONF", "")
    connected = mapping(engine, "kv-transfer-config").get("kv_connector") or "kv-offloading-size" in engine.args
    if not connected or "expandable_segments:true" not in allocator.replace(" ", "").lower():
        return None
    if engine.args.get("enable-cumem-allocator") is True:
        return None
    return "a KV connector cannot register memory of PyTorch's expandable segments"

"""Which engines may hand KV cache to each other."""

from __future__ import annotations

import hashlib
import json

from kimi_k3_operator.profiles.engine import WEIGHTS_PATH, EngineConfig
from kimi_k3_operator.profiles.refusals.settings import attention_backend, kv_block, kv_cache_dtype, mapping

SHAPING_ARGS = (
    "cp-kv-cache-interleave-size", "dcp-kv-cache-interleave-size", "decode-context-parallel-size",
    "disable-hybrid-kv-cache-manager", "dtype", "enable-prefix-caching", "mamba-ssm-cache-dtype",
    "pipeline-parallel-size", "prefix-caching-hash-algo", "prefix-match-unit", "quantization", "tensor-parallel-size",
)  # fmt: skip
"""Flags that decide how the cache lies in memory or how its blocks are named."""

SHAPING_ENV = ("PYTHONHASHSEED", "VLLM_KV_CACHE_LAYOUT", "VLLM_SSM_CONV_STATE_LAYOUT")

DRAFT_SETTINGS = ("attention_backend", "code_revision", "kv_cache_dtype", "method", "parallel_drafting", "revision")


def compatibility_hash(engine: EngineConfig) -> str:
    """16 hexadecimal digits, equal for engines between which a KV transfer works.

    Holds what NIXL's handshake compares (vLLM wheels 0.28 to 0.33: engine, model, dtypes, attention, draft) and what
    it finds out later or never: block size, ranks, layouts, the number of draft tokens, which changes the KDA page.
    Batches, memory shares and addresses differ between roles and are left out. Raises ValueError for an engine whose
    KV block cannot be computed; policies refuse it before.
    """
    checkpoint = engine.checkpoint.download
    draft = mapping(engine, "speculative-config") if engine.speculation.tokens else {}
    facts = {
        "engine": engine.engine_version,
        "image": engine.image,
        "model": [WEIGHTS_PATH, *((checkpoint.model, checkpoint.revision) if checkpoint else ())],
        "block": kv_block(engine),
        "cacheDtype": kv_cache_dtype(engine),
        "attention": attention_backend(engine),
        "args": {name: str(engine.args[name]) for name in SHAPING_ARGS if name in engine.args},
        "env": {name: engine.env[name] for name in SHAPING_ENV if name in engine.env},
        "connector": mapping(engine, "kv-transfer-config").get("kv_connector"),
        "draft": {
            "id": engine.speculation.draft,
            "path": engine.speculation.path,
            "tokens": engine.speculation.tokens,
            "revision": engine.speculation.download.revision if engine.speculation.download else None,
            "settings": {name: draft[name] for name in DRAFT_SETTINGS if name in draft},
        }
        if engine.speculation.tokens
        else None,
    }
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]

"""What the policies read of an engine, whoever set it: overrides are text, values of a profile are typed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from packaging.version import Version

from kimi_k3_operator.profiles.blocks import kv_block_tokens
from kimi_k3_operator.profiles.engine import EngineConfig


def before(engine: EngineConfig, version: str) -> bool:
    """Whether the engine is older than `version`."""
    return Version(engine.engine_version) < Version(version)


def word(engine: EngineConfig, flag: str, default: str = "") -> str:
    """The value of a flag as text."""
    return str(engine.args.get(flag, default))


def mapping(engine: EngineConfig, flag: str) -> Mapping[str, Any]:
    """The value of a flag that takes JSON; empty where it is absent or no JSON object."""
    value = engine.args.get(flag)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    return value if isinstance(value, dict) else {}


def is_on(value: object) -> bool:
    """Whether a switch, a variable or a JSON value says yes, in the spellings that vLLM takes."""
    return str(value).strip().lower() in ("1", "true")


def prefix_caching(engine: EngineConfig) -> bool:
    """On unless turned off: in the supported versions that is the engine's default for Kimi K3 as well."""
    return engine.args.get("enable-prefix-caching") is not False


def decode_context_parallel(engine: EngineConfig) -> int:
    return engine.int_arg("decode-context-parallel-size", 1)


def tensor_parallel(engine: EngineConfig) -> int:
    return engine.int_arg("tensor-parallel-size", 1)


def pipeline_parallel(engine: EngineConfig) -> int:
    return engine.int_arg("pipeline-parallel-size", 1)


def attention_backend(engine: EngineConfig) -> str:
    """The attention backend asked for, in capitals; empty where the engine chooses."""
    asked = engine.args.get("attention-backend") or mapping(engine, "attention-config").get("backend") or ""
    return "" if str(asked).lower() == "auto" else str(asked).upper()


def kv_cache_dtype(engine: EngineConfig) -> str:
    return word(engine, "kv-cache-dtype", "auto")


def kv_block(engine: EngineConfig) -> int:
    """Tokens of a KV block. Raises ValueError as `kv_block_tokens` does."""
    ssm = word(engine, "mamba-ssm-cache-dtype", "auto")
    return kv_block_tokens(
        tensor_parallel=engine.int_arg("tensor-parallel-size", 8),
        kv_cache_dtype=kv_cache_dtype(engine),
        draft_tokens=engine.speculation.tokens,
        ssm_dtype="auto" if ssm == "bfloat16" and before(engine, "0.30") else ssm,
    )


def kv_block_or_none(engine: EngineConfig) -> int | None:
    """Tokens of a KV block; None where another policy says why there is none."""
    try:
        return kv_block(engine)
    except ValueError:
        return None


def draft_config(engine: EngineConfig) -> Mapping[str, Any]:
    """The speculative configuration; empty without speculation."""
    return mapping(engine, "speculative-config") if engine.speculation.tokens else {}


def on_amd(engine: EngineConfig) -> bool:
    return engine.profile.hardware.vendor == "amd"

"""Engines for policies, each made with only what a policy is about."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kimi_k3_operator.api.v1alpha1 import Load
from kimi_k3_operator.profiles.engine import EngineConfig
from kimi_k3_operator.profiles.refusals import judge
from kimi_k3_operator.profiles.refusals.amd import situ_variable
from tests.factories import b300, deployment, engine_of, gb300, mi350x

Row = tuple[str, EngineConfig, EngineConfig]
DRAFTED = {"mode": "DSpark", "draft": {"id": "Inferact/Kimi-K3-DSpark", "path": "/d"}}
HARDWARE = {"b300": b300, "mi350x": mi350x, "gb300": gb300}
EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
NIXL = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
EVENTS = {"enable_kv_cache_events": True, "endpoint": "tcp://*:5600"}
LATENCY = {"decode_backend": "latency_specialized"}
RUST = {"VLLM_USE_RUST_FRONTEND": "1"}
SITU_30, SITU_31 = "VLLM_ROCM_USE_AITER_MOE_SITUV2_A8W4", "VLLM_ROCM_USE_AITER_MOE_SITUV2"
V1 = {"VLLM_USE_V2_MODEL_RUNNER": "0"}


def engine(
    hardware: str = "b300",
    *,
    drafted: bool = False,
    version: str = "0.30.0",
    draft: str = "",
    tokens: int = 0,
    config: dict[str, Any] | None = None,
    env: dict[str, str] | None = None,
    load: tuple[int, int] = (8, 131072),
    **args: Any,
) -> EngineConfig:
    """The engine of a pool with other flags, variables, version, draft or load; `config` is speculative.

    A variable or a flag of None is not set.
    """
    pool = HARDWARE[hardware](speculation=DRAFTED) if drafted else HARDWARE[hardware]()
    made = engine_of(deployment(pool))
    speculation = replace(made.speculation, draft=draft or made.speculation.draft)
    speculation = replace(speculation, tokens=tokens or speculation.tokens)
    flags = {**made.args, **{name.replace("_", "-"): value for name, value in args.items()}}
    if config is not None:
        flags["speculative-config"] = {**flags["speculative-config"], **config}
    return replace(
        made,
        args={name: value for name, value in flags.items() if value is not None},
        env={name: value for name, value in {**made.env, **(env or {})}.items() if value is not None},
        engine_version=version,
        speculation=speculation,
        load=Load(concurrency=load[0], context_tokens=load[1]),
    )


def found(made: EngineConfig) -> list[str]:
    refusals, warnings = judge(made)
    return [r.id for r in (*refusals, *warnings)]


def amd(version: str, env: dict[str, Any] | None = None, **args: Any) -> EngineConfig:
    """An MI350X engine of that version under its own SiTU variable, unless `env` says otherwise."""
    name, value = situ_variable(version)
    return engine("mi350x", version=version, env={SITU_30: None, name: value, **(env or {})}, **args)

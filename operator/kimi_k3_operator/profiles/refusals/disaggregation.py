"""KV transfer between prefill and decode."""

from __future__ import annotations

from kimi_k3_operator.profiles.engine import EngineConfig
from kimi_k3_operator.profiles.refusals.settings import (
    before,
    decode_context_parallel,
    mapping,
    pipeline_parallel,
    tensor_parallel,
)
from kimi_k3_operator.profiles.refusals.table import refusal


def connector(engine: EngineConfig) -> str:
    """The KV connector's name; empty where nothing is transferred."""
    return str(mapping(engine, "kv-transfer-config").get("kv_connector", ""))


@refusal("nixl-state-layout", fix="set VLLM_SSM_CONV_STATE_LAYOUT=DS in both roles")
def nixl_needs_its_state_layout(engine: EngineConfig) -> str | None:
    layout = engine.env.get("VLLM_SSM_CONV_STATE_LAYOUT", "SD")
    if connector(engine).startswith("Nixl") and layout != "DS":
        return f"NIXL moves the KDA state in the layout DS, the engine would keep it in {layout}"
    return None


@refusal("nixl-with-dcp", fix="remove decode-context-parallel-size")
def nixl_with_context_parallel(engine: EngineConfig) -> str | None:
    parts = decode_context_parallel(engine)
    if not connector(engine).startswith("Nixl") or parts == 1:
        return None
    if before(engine, "0.30"):
        return f"NIXL of vLLM {engine.engine_version} cannot move a hybrid cache with decode context parallelism"
    if parts != tensor_parallel(engine):
        return f"NIXL moves a cache split over 1 or {tensor_parallel(engine)} GPUs, not over {parts}"
    return None


@refusal("nixl-with-pp", link="https://github.com/vllm-project/vllm/issues/51053", fix="use tensor parallelism alone")
def nixl_with_pipeline(engine: EngineConfig) -> str | None:
    if connector(engine).startswith("Nixl") and pipeline_parallel(engine) > 1:
        return "NIXL cannot move a hybrid cache with pipeline parallelism"
    return None


@refusal("hybrid-connector", fix="use NixlConnector")
def connector_knows_the_hybrid_cache(engine: EngineConfig) -> str | None:
    name = connector(engine)
    if name == "MoRIIOConnector" and before(engine, "0.31"):
        return f"MoRIIOConnector of vLLM {engine.engine_version} does not know the KDA state"
    if name in ("LMCacheConnectorV1", "ExampleConnector"):
        return f"{name} does not know the hybrid cache, and the engine fails long after it has started"
    return None


@refusal("kv-events-port", fix="give kv-events-config another endpoint")
def events_and_transfer_have_their_own_ports(engine: EngineConfig) -> str | None:
    events = mapping(engine, "kv-events-config")
    if not events.get("enable_kv_cache_events") or not connector(engine).startswith("Nixl"):
        return None
    port = str(events.get("endpoint", "tcp://*:5557")).rpartition(":")[2]
    taken = engine.env.get("VLLM_NIXL_SIDE_CHANNEL_PORT", "5600")
    return f"KV events and NIXL's side channel would both use port {port}" if port == taken else None

"""How the GPUs of a replica divide the work."""

from __future__ import annotations

from kimi_k3_operator.profiles.engine import EngineConfig
from kimi_k3_operator.profiles.refusals.settings import (
    before,
    decode_context_parallel,
    is_on,
    mapping,
    on_amd,
    pipeline_parallel,
    tensor_parallel,
    word,
)
from kimi_k3_operator.profiles.refusals.table import refusal


@refusal("tensor-parallel-gpus", fix="leave tensor-parallel-size to the profile")
def tensor_parallel_matches_gpus(engine: EngineConfig) -> str | None:
    ranks = tensor_parallel(engine) * pipeline_parallel(engine)
    gpus = engine.profile.hardware.gpus_per_replica
    return None if ranks == gpus else f"the engine would start {ranks} ranks on the {gpus} GPUs of a replica"


@refusal("dcp-divides-tp", fix="use 1, 2, 4 or 8", at="overrides.args.decode-context-parallel-size")
def context_parallel_divides_tensor_parallel(engine: EngineConfig) -> str | None:
    ranks, parts = tensor_parallel(engine), decode_context_parallel(engine)
    if parts > 0 and ranks % parts == 0:
        return None
    return f"decode-context-parallel-size {parts} does not divide tensor-parallel-size {ranks}"


@refusal("dcp-communication", fix="use ag_rs or a2a", at="overrides.args.dcp-comm-backend")
def context_parallel_communication(engine: EngineConfig) -> str | None:
    name = word(engine, "dcp-comm-backend", "ag_rs")
    if name not in ("ag_rs", "a2a"):
        return f"decode context parallelism cannot communicate by {name}"
    if name == "a2a" and before(engine, "0.29") and decode_context_parallel(engine) == 1:
        return f"vLLM {engine.engine_version} refuses dcp-comm-backend a2a without decode context parallelism"
    return None


@refusal("pipeline-with-v1-runner", engines=">=0.31", fix="remove VLLM_USE_V2_MODEL_RUNNER, or set no-async-scheduling")
def pipeline_with_the_first_runner(engine: EngineConfig) -> str | None:
    first = engine.env.get("VLLM_USE_V2_MODEL_RUNNER") == "0"
    if pipeline_parallel(engine) > 1 and first and engine.args.get("async-scheduling") is not False:
        return "pipeline parallelism with asynchronous scheduling needs the V2 model runner"
    return None


@refusal("api-servers-of-a-group", fix="remove api-server-count", at="overrides.args.api-server-count")
def api_servers_of_a_group(engine: EngineConfig) -> str | None:
    if engine.profile.hardware.multi_node and "api-server-count" in engine.args:
        return "the headless rank of a group refuses to start with api-server-count"
    return None


@refusal("allreduce-over-nodes", fix="remove VLLM_FLASHINFER_ALLREDUCE_BACKEND, or set mnnvl")
def allreduce_reaches_all_nodes(engine: EngineConfig) -> str | None:
    trtllm = engine.env.get("VLLM_FLASHINFER_ALLREDUCE_BACKEND", "").lower() == "trtllm"
    if engine.profile.hardware.multi_node and trtllm:
        return "the trtllm all-reduce works inside one node only, and a replica has several"
    return None


@refusal(
    "specialized-decode", fix="remove decode_backend from additional-config", at="overrides.args.additional-config"
)
def specialized_decode_has_what_it_needs(engine: EngineConfig) -> str | None:
    """Rules of the single-purpose decode path of 0.33, which the engine looks at when the model is loaded."""
    if mapping(engine, "additional-config").get("decode_backend") != "latency_specialized":
        return None
    if before(engine, "0.33"):
        return f"vLLM {engine.engine_version} has no specialized decode"
    parts = decode_context_parallel(engine)
    wrong = {
        "pipeline parallelism": pipeline_parallel(engine) > 1,
        "decode context parallelism between 1 and all GPUs": parts not in (1, tensor_parallel(engine)),
        "expert parallelism": engine.args.get("enable-expert-parallel") is True,
        "dual batches": engine.args.get("enable-dbo") is True,
        "LoRA": engine.args.get("enable-lora") is True,
        "sleep mode": engine.args.get("enable-sleep-mode") is True,
        "use-replayssm": engine.args.get("use-replayssm") is True,
        "the V1 model runner": engine.env.get("VLLM_USE_V2_MODEL_RUNNER") == "0",
        "eager mode": engine.args.get("enforce-eager") is True,
        "adaptive verification": is_on(mapping(engine, "speculative-config").get("enable_adaptive_verification")),
        "AMD GPUs without a draft": on_amd(engine) and not engine.speculation.tokens,
    }
    found = [what for what, given in wrong.items() if given]
    return f"the specialized decode does not work with {found[0]}" if found else None

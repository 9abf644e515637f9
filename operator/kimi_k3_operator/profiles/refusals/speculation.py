"""DSpark: drafts, their numbers and what they cannot be combined with."""

from __future__ import annotations

from kimi_k3_operator.profiles.checks import MAX_DRAFT_TOKENS
from kimi_k3_operator.profiles.engine import EngineConfig
from kimi_k3_operator.profiles.refusals.settings import (
    attention_backend,
    before,
    decode_context_parallel,
    draft_config,
    is_on,
    mapping,
    on_amd,
    pipeline_parallel,
    tensor_parallel,
)
from kimi_k3_operator.profiles.refusals.table import refusal, warning

DCP_LINK = "https://github.com/vllm-project/vllm/pull/52269"
SAFE_DRAFTS = ("Inferact/",)
FULL_GRAPHS = frozenset({"FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"})
CONFIG_KEYS = frozenset(
    {
        "attention_backend", "code_revision", "draft_sample_method", "draft_tensor_parallel_size",
        "enable_adaptive_verification", "enforce_eager", "kv_cache_dtype", "max_model_len", "method", "model",
        "moe_backend", "num_speculative_tokens", "quantization", "rejection_sample_method", "revision",
    }
)  # fmt: skip
"""Keys that make sense for DSpark and that every supported version has."""


@refusal("draft-tokens", at="speculation", fix="set speculation.tokens to what the draft was trained for, at most 7")
def draft_tokens_fit_the_draft(engine: EngineConfig) -> str | None:
    tokens, draft = engine.speculation.tokens, engine.speculation.draft
    known = next((d.block_size for d in engine.profile.speculation.drafts if d.id == draft), MAX_DRAFT_TOKENS)
    if tokens > known:
        return f"{tokens} tokens are above the {known} that {draft} drafts at once"
    if tokens > MAX_DRAFT_TOKENS:
        return f"{tokens} tokens are above the {MAX_DRAFT_TOKENS} that the KDA verification kernel takes"
    return None


@refusal(
    "dspark-with-dcp", engines="<0.29", link=DCP_LINK,
    fix="set speculation.mode: Off, or remove decode-context-parallel-size",
)  # fmt: skip
def dspark_with_dcp(engine: EngineConfig) -> str | None:
    if engine.speculation.tokens and decode_context_parallel(engine) > 1:
        return "vLLM refuses DSpark together with decode context parallelism"
    return None


@warning(
    "dspark-with-dcp-unproven", engines=">=0.29", link="https://github.com/vllm-project/vllm/issues/54649",
    fix="set speculation.mode: Off, or remove decode-context-parallel-size",
)  # fmt: skip
def dspark_with_dcp_unproven(engine: EngineConfig) -> str | None:
    if engine.speculation.tokens and decode_context_parallel(engine) > 1:
        return "DSpark with decode context parallelism ended in illegal memory accesses in builds after 0.28"
    return None


@refusal(
    "dspark-with-pp", engines="<0.30", link="https://github.com/vllm-project/vllm/pull/50514",
    fix="set speculation.mode: Off",
)  # fmt: skip
def dspark_with_pipeline(engine: EngineConfig) -> str | None:
    if engine.speculation.tokens and pipeline_parallel(engine) > 1:
        return "vLLM refuses DSpark together with pipeline parallelism"
    return None


@refusal("dspark-with-v1-runner", fix="remove VLLM_USE_V2_MODEL_RUNNER", at="overrides.env.VLLM_USE_V2_MODEL_RUNNER")
def dspark_with_the_first_runner(engine: EngineConfig) -> str | None:
    if engine.speculation.tokens and engine.env.get("VLLM_USE_V2_MODEL_RUNNER", "1").lower() in ("0", "false"):
        return "DSpark needs the V2 model runner, which VLLM_USE_V2_MODEL_RUNNER=0 turns off"
    return None


@refusal("mtp-without-weights", fix="use DSpark, or set speculation.mode: Off")
def multi_token_prediction(engine: EngineConfig) -> str | None:
    method = str(draft_config(engine).get("method", "dspark"))
    return f"{method}: the checkpoint of Kimi K3 has no layer for it" if method in ("mtp", "kimi_k3_mtp") else None


@refusal("speculation-method", fix="use DSpark, or set speculation.mode: Off")
def method_is_dspark(engine: EngineConfig) -> str | None:
    method = str(draft_config(engine).get("method", "dspark"))
    if method == "dspark" or multi_token_prediction(engine):
        return None
    return f"no draft of method {method} exists for Kimi K3"


@refusal("speculation-key", fix="remove the key from the profile's speculation.config")
def speculation_keys_are_known(engine: EngineConfig) -> str | None:
    unknown = sorted(set(draft_config(engine)) - CONFIG_KEYS)
    return f"{unknown[0]} is no speculative setting for DSpark on Kimi K3" if unknown else None


@refusal("draft-sampling", fix="use greedy or probabilistic, and standard or block")
def sampling_keeps_the_models_answers(engine: EngineConfig) -> str | None:
    config = draft_config(engine)
    drawn, kept = config.get("draft_sample_method", "greedy"), config.get("rejection_sample_method", "standard")
    if drawn not in ("greedy", "probabilistic"):
        return f"draft_sample_method {drawn} does not exist"
    if kept not in ("standard", "block"):
        return f"rejection_sample_method {kept} accepts tokens that Kimi K3 would not have said"
    return None


@refusal("draft-tensor-parallel", fix="remove draft_tensor_parallel_size")
def draft_ranks(engine: EngineConfig) -> str | None:
    ranks, size = tensor_parallel(engine), str(draft_config(engine).get("draft_tensor_parallel_size", "1"))
    return None if size in ("1", str(ranks)) else f"draft_tensor_parallel_size {size} is neither 1 nor {ranks}"


@refusal("draft-attention", fix="use FLASHINFER_MLA or TOKENSPEED_MLA on NVIDIA, TRITON_MLA on AMD")
def draft_backend_runs_on_the_hardware(engine: EngineConfig) -> str | None:
    backend = str(draft_config(engine).get("attention_backend", "TRITON_MLA")).upper()
    if backend == "ROCM_AITER_MLA" and on_amd(engine) and before(engine, "0.30"):
        return f"{backend} of vLLM {engine.engine_version} cannot verify what a draft proposes"
    here = {"ROCM_AITER_MLA"} if on_amd(engine) else {"FLASHINFER_MLA", "TOKENSPEED_MLA"}
    return None if backend in here | {"TRITON_MLA"} else f"the draft cannot use attention backend {backend} here"


@refusal(
    "adaptive-verification-graphs", fix="use a full graph mode, or remove enable_adaptive_verification"
)  # fmt: skip
def adaptive_verification_needs_full_graphs(engine: EngineConfig) -> str | None:
    if not is_on(draft_config(engine).get("enable_adaptive_verification")):
        return None
    mode = str(mapping(engine, "compilation-config").get("cudagraph_mode", "FULL_AND_PIECEWISE")).upper()
    if engine.args.get("enforce-eager") is True:
        mode = "NONE"
    return None if mode in FULL_GRAPHS else f"adaptive verification needs full CUDA graphs, not {mode}"


@refusal("adaptive-verification-alone", engines=">=0.29", fix="remove enable_adaptive_verification")
def adaptive_verification_stands_alone(engine: EngineConfig) -> str | None:
    if not is_on(draft_config(engine).get("enable_adaptive_verification")):
        return None
    found = ["pipeline parallelism"] if pipeline_parallel(engine) > 1 else []
    found += ["LoRA"] if engine.args.get("enable-lora") is True else []
    return f"adaptive verification does not work with {found[0]}" if found else None


@refusal("replayssm-without-draft", engines=">=0.29", fix="remove use-replayssm", at="overrides.args.use-replayssm")
def replay_needs_a_draft(engine: EngineConfig) -> str | None:
    if engine.args.get("use-replayssm") is True and not engine.speculation.tokens:
        return "use-replayssm replays draft tokens, and speculation is off"
    return None


@refusal("replayssm-with-draft", engines="<0.29", fix="remove use-replayssm", at="overrides.args.use-replayssm")
def replay_with_a_draft(engine: EngineConfig) -> str | None:
    if engine.args.get("use-replayssm") is True and engine.speculation.tokens:
        return f"use-replayssm of vLLM {engine.engine_version} does not work with a draft"
    return None


@warning("cutlass-with-draft", fix="use FLASHINFER_MLA")
def cutlass_decodes_single_tokens(engine: EngineConfig) -> str | None:
    if engine.speculation.tokens and attention_backend(engine) == "CUTLASS_MLA":
        return "CUTLASS_MLA has graphs for single tokens only, so verifying a draft is slow"
    return None


@warning("draft-shortens-context", engines=">=0.33", fix="compare max_model_len of /v1/models with max-model-len")
def draft_may_shorten_the_context(engine: EngineConfig) -> str | None:
    if engine.speculation.tokens and engine.int_arg("max-model-len", 1048576) > 32768:
        return f"vLLM {engine.engine_version} cuts max-model-len to the length of a YaRN draft without an error"
    return None


@refusal(
    "foreign-draft", link="https://github.com/vllm-project/vllm-ascend/issues/14875",
    fix="use Inferact/Kimi-K3-DSpark",
)  # fmt: skip
def draft_of_another_engine(engine: EngineConfig) -> str | None:
    if engine.speculation.tokens and engine.speculation.draft.startswith("RadixArk/"):
        return f"{engine.speculation.draft} is a draft for another engine"
    return None


@warning("unverified-draft", fix="prefer Inferact/Kimi-K3-DSpark")
def draft_of_unknown_form(engine: EngineConfig) -> str | None:
    draft = engine.speculation.draft
    if not engine.speculation.tokens or draft.startswith(SAFE_DRAFTS) or draft_of_another_engine(engine):
        return None
    return f"the configuration format of {draft} is unverified on vLLM"


@warning(
    "draft-on-long-contexts", link="https://github.com/vllm-project/vllm/issues/47930",
    fix="set speculation.mode: Auto or Off, or use Inferact/Kimi-K3-DSpark-Block5",
)  # fmt: skip
def draft_on_long_contexts(engine: EngineConfig) -> str | None:
    made_for_it = engine.speculation.draft == "Inferact/Kimi-K3-DSpark-Block5"
    if not engine.speculation.tokens or made_for_it or engine.load.context_tokens <= 131072:
        return None
    return f"on contexts of {engine.load.context_tokens} tokens drafts are hardly accepted and slow the answers down"

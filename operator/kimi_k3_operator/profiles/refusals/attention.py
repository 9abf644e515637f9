"""Attention kernels, the types they read, and the numbers the model computes in."""

from __future__ import annotations

from kimi_k3_operator.profiles.blocks import CACHE_BYTES
from kimi_k3_operator.profiles.engine import EngineConfig
from kimi_k3_operator.profiles.refusals.settings import attention_backend, before, kv_cache_dtype, mapping, on_amd, word
from kimi_k3_operator.profiles.refusals.table import refusal
from kimi_k3_operator.profiles.refusals.versioned import ATTENTION_KEYS, known_in

BLACKWELL = frozenset({"FLASHINFER_MLA", "TOKENSPEED_MLA", "CUTLASS_MLA", "FLASHMLA"})
AMD = frozenset({"ROCM_AITER_MLA", "ROCM_AITER_TRITON_MLA"})
HOPPER = frozenset({"FLASH_ATTN_MLA"})
EVERYWHERE = frozenset({"TRITON_MLA"})
PREFILL_BLACKWELL = frozenset({"FLASHINFER", "TRTLLM_RAGGED", "TOKENSPEED_MLA"})
PREFILL_AMD = frozenset({"ROCM_AITER_FA"})
PREFILL_EVERYWHERE = frozenset({"FLASH_ATTN"})


@refusal("kv-cache-dtype", fix="use auto, bfloat16 or fp8", at="overrides.args.kv-cache-dtype")
def cache_dtype_is_usable(engine: EngineConfig) -> str | None:
    dtype = kv_cache_dtype(engine)
    return None if dtype in CACHE_BYTES else f"the attention of Kimi K3 has no KV cache of type {dtype}"


@refusal("model-dtype", fix="remove dtype; the checkpoint is bfloat16", at="overrides.args.dtype")
def model_dtype_is_the_checkpoints(engine: EngineConfig) -> str | None:
    dtype = word(engine, "dtype", "auto")
    return None if dtype in ("auto", "bfloat16") else f"{dtype} changes the KV block and was never run with Kimi K3"


@refusal("quantization", fix="remove quantization; the checkpoint states it", at="overrides.args.quantization")
def quantization_is_the_checkpoints(engine: EngineConfig) -> str | None:
    chosen = engine.args.get("quantization")
    return f"the engine reads the quantization from the checkpoint, {chosen} would replace it" if chosen else None


@refusal("ssm-cache-dtype", fix="use auto or float32, or bfloat16 from vLLM 0.30")
def state_dtype_is_usable(engine: EngineConfig) -> str | None:
    dtype = word(engine, "mamba-ssm-cache-dtype", "auto")
    if dtype in ("auto", "float32"):
        return None
    if dtype != "bfloat16":
        return f"the KDA state of Kimi K3 cannot be {dtype}"
    if before(engine, "0.30"):
        return f"vLLM {engine.engine_version} ignores mamba-ssm-cache-dtype {dtype}"
    return None


@refusal("attention-backend", fix="use a backend of this hardware, or leave the choice to the engine")
def backend_runs_on_the_hardware(engine: EngineConfig) -> str | None:
    backend = attention_backend(engine)
    here = EVERYWHERE | (AMD if on_amd(engine) else BLACKWELL)
    if not backend or backend in here:
        return None
    if backend in HOPPER:
        return f"attention backend {backend} runs on Hopper GPUs only, not on {engine.profile.hardware.display_name}"
    known = ", ".join(sorted(here))
    return f"attention backend {backend} does not serve Kimi K3 on {engine.profile.hardware.display_name} ({known} do)"


@refusal("prefill-backend", fix="use a prefill backend of this hardware", at="overrides.args.attention-config")
def prefill_backend_runs_on_the_hardware(engine: EngineConfig) -> str | None:
    backend = str(mapping(engine, "attention-config").get("mla_prefill_backend") or "").upper()
    here = PREFILL_EVERYWHERE | (PREFILL_AMD if on_amd(engine) else PREFILL_BLACKWELL)
    if not backend or backend in here:
        return None
    known = ", ".join(sorted(here))
    return f"prefill backend {backend} does not run on {engine.profile.hardware.display_name} ({known} do)"


@refusal("attention-backend-twice", fix="keep one of the two")
def backend_is_named_once(engine: EngineConfig) -> str | None:
    if engine.args.get("attention-backend") and mapping(engine, "attention-config").get("backend"):
        return "attention-backend and attention-config.backend are both set, which the engine refuses"
    return None


@refusal("attention-config-key", fix="remove the key", at="overrides.args.attention-config")
def attention_keys_are_known(engine: EngineConfig) -> str | None:
    known = known_in(ATTENTION_KEYS, engine.engine_version)
    unknown = sorted(set(mapping(engine, "attention-config")) - known)
    return f"vLLM {engine.engine_version} has no attention setting {unknown[0]}" if unknown else None


@refusal("tokenspeed-needs-fp8", fix="set kv-cache-dtype fp8, or use FLASHINFER_MLA")
def tokenspeed_reads_fp8(engine: EngineConfig) -> str | None:
    if attention_backend(engine) == "TOKENSPEED_MLA" and not kv_cache_dtype(engine).startswith("fp8"):
        return f"TOKENSPEED_MLA reads an fp8 KV cache only, not {kv_cache_dtype(engine)}"
    return None


@refusal("kda-backend", fix="leave kda-prefill-backend to the engine", at="overrides.args.kda-prefill-backend")
def kda_backend_runs_on_the_hardware(engine: EngineConfig) -> str | None:
    backend = word(engine, "kda-prefill-backend", "auto").lower()
    if before(engine, "0.30") and backend in ("flashinfer", "fused"):
        return f"vLLM {engine.engine_version} has no KDA prefill backend {backend}"
    if backend == "flashkda" and on_amd(engine):
        return "the KDA prefill backend flashkda needs CUDA"
    if backend == "fused" and not on_amd(engine):
        return "the KDA prefill backend fused needs ROCm"
    return None

"""The experts: their kernels and how they are spread."""

from __future__ import annotations

from kimi_k3_operator.profiles.engine import EngineConfig
from kimi_k3_operator.profiles.refusals.settings import on_amd, word
from kimi_k3_operator.profiles.refusals.table import refusal
from kimi_k3_operator.profiles.refusals.versioned import ALL2ALL_BACKENDS, MOE_BACKENDS, known_in

CUDA_MOE = frozenset(
    {
        "cutlass", "deep_gemm", "deep_gemm_mega_moe", "flashinfer_b12x", "flashinfer_cutedsl", "flashinfer_cutlass",
        "flashinfer_moe_ep_cutedsl", "flashinfer_moe_ep_mega_cutedsl", "flashinfer_moe_ep_mega_deep_gemm",
        "flashinfer_trtllm",
    }
)  # fmt: skip
ROCM_MOE = frozenset({"aiter", "aiter_mega_moe", "aiter_triton_mxfp4_bf16", "aiter_triton_mxfp4_mxfp4", "rdna3"})


def backend_of(engine: EngineConfig) -> str:
    return word(engine, "moe-backend", "auto").lower().replace("-", "_")


@refusal("moe-backend", fix="leave moe-backend to the engine", at="overrides.args.moe-backend")
def moe_backend_is_known(engine: EngineConfig) -> str | None:
    backend = backend_of(engine)
    if backend not in known_in(MOE_BACKENDS, engine.engine_version):
        return f"vLLM {engine.engine_version} has no MoE backend {backend}"
    if backend in (CUDA_MOE if on_amd(engine) else ROCM_MOE):
        return f"MoE backend {backend} does not run on {engine.profile.hardware.display_name}"
    return None


@refusal("all2all-backend", fix="leave all2all-backend to the engine", at="overrides.args.all2all-backend")
def all2all_backend_is_known(engine: EngineConfig) -> str | None:
    backend = word(engine, "all2all-backend", "allgather_reducescatter")
    if backend not in known_in(ALL2ALL_BACKENDS, engine.engine_version):
        return f"vLLM {engine.engine_version} has no all2all backend {backend}"
    return "moonep moves bfloat16 experts only, those of Kimi K3 are MXFP4" if backend == "moonep" else None


@refusal("mega-moe-expert-parallel", fix="set enable-expert-parallel, or leave moe-backend to the engine")
def mega_moe_needs_expert_parallel(engine: EngineConfig) -> str | None:
    if backend_of(engine) == "deep_gemm_mega_moe" and engine.args.get("enable-expert-parallel") is not True:
        return "deep_gemm_mega_moe works with expert parallelism only"
    return None


@refusal(
    "mega-moe-hardware", link="https://github.com/vllm-project/recipes/pull/752",
    fix="leave moe-backend to the engine",
)  # fmt: skip
def mega_moe_needs_a_rack(engine: EngineConfig) -> str | None:
    hardware = engine.profile.hardware
    if backend_of(engine) == "deep_gemm_mega_moe" and not on_amd(engine) and not hardware.domain_labels:
        return f"deep_gemm_mega_moe is for one NVLink domain of several nodes, not for {hardware.display_name}"
    return None

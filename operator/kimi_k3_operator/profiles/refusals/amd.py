"""Variables that decide whether an AMD engine computes the right thing."""

from __future__ import annotations

from packaging.version import Version

from kimi_k3_operator.profiles.engine import EngineConfig
from kimi_k3_operator.profiles.refusals.settings import attention_backend, decode_context_parallel, is_on, on_amd
from kimi_k3_operator.profiles.refusals.settings import kv_cache_dtype as cache_dtype
from kimi_k3_operator.profiles.refusals.table import refusal, warning

OLDEST_SITU = "AITER_SITUV2_A8W4"
SITU_SWITCH = "VLLM_ROCM_USE_AITER_MOE_SITUV2_A8W4"
SITU_CHOICE = "VLLM_ROCM_USE_AITER_MOE_SITUV2"
SITU_NAMES = (OLDEST_SITU, SITU_SWITCH, SITU_CHOICE)
"""One setting, the precision of the SiTU experts, under the names it had up to 0.27, to 0.30, and since 0.31."""


def situ_variable(version: str) -> tuple[str, str]:
    """(name, value) that the engine's version reads for 8-bit activations and 4-bit weights."""
    return (SITU_SWITCH, "1") if Version(version) < Version("0.31") else (SITU_CHOICE, "a8w4")


@refusal(
    "situ-variable", link="https://github.com/vllm-project/vllm/issues/52442",
    fix="remove the other name and set the one of this version",
)  # fmt: skip
def situ_variable_of_another_version(engine: EngineConfig) -> str | None:
    if not on_amd(engine):
        return None
    name, value = situ_variable(engine.engine_version)
    wrong = [other for other in SITU_NAMES if other != name and other in engine.env]
    if wrong:
        return f"vLLM {engine.engine_version} reads {name}={value}, not {wrong[0]}; the wrong name gives wrong answers"
    if name == SITU_SWITCH and not is_on(engine.env.get(name, "0")):
        return f"without {name}={value} the answers of vLLM {engine.engine_version} are wrong, with no error"
    return None


@warning("situ-precision", engines=">=0.31", fix="set VLLM_ROCM_USE_AITER_MOE_SITUV2=a8w4")
def situ_precision_is_the_measured_one(engine: EngineConfig) -> str | None:
    precision = engine.env.get(SITU_CHOICE, "auto")
    if not on_amd(engine) or precision == "a8w4" or OLDEST_SITU in engine.env or SITU_SWITCH in engine.env:
        return None
    return f"{SITU_CHOICE} {precision} computes the experts in a precision that no published run used"


@refusal(
    "aiter-off", link="https://github.com/vllm-project/vllm/issues/56945",
    fix="set VLLM_ROCM_USE_AITER=1",
)  # fmt: skip
def aiter_is_on(engine: EngineConfig) -> str | None:
    names = ("VLLM_ROCM_USE_AITER", "VLLM_ROCM_USE_AITER_MOE")
    off = [name for name in names if not is_on(engine.env.get(name, "0" if name == names[0] else "1"))]
    return f"{off[0]} is off, so the experts take a path that is wrong for Kimi K3" if on_amd(engine) and off else None


@refusal("breakable-graphs-on-rocm", engines="<0.29", fix="set VLLM_USE_BREAKABLE_CUDAGRAPH=0")
def breakable_graphs_are_off(engine: EngineConfig) -> str | None:
    if on_amd(engine) and engine.env.get("VLLM_USE_BREAKABLE_CUDAGRAPH") != "0":
        return f"vLLM {engine.engine_version} turns on breakable CUDA graphs by itself, which ROCm does not have"
    return None


@refusal("dcp-on-rocm", engines="<0.29", fix="remove decode-context-parallel-size")
def context_parallel_on_rocm(engine: EngineConfig) -> str | None:
    if on_amd(engine) and decode_context_parallel(engine) > 1 and attention_backend(engine) in ("", "ROCM_AITER_MLA"):
        return "the AITER attention of this version cannot merge the parts of decode context parallelism"
    return None


@refusal(
    "fp8-kv-on-amd", engines="<0.29", link="https://github.com/vllm-project/vllm/issues/51232",
    fix="set kv-cache-dtype auto",
)  # fmt: skip
def fp8_cache_without_kernels(engine: EngineConfig) -> str | None:
    if on_amd(engine) and cache_dtype(engine).startswith("fp8"):
        return "AITER has no kernel for the 12 heads of a GPU with an fp8 KV cache in this version"
    return None


@warning(
    "fp8-kv-on-amd-unproven", engines=">=0.29", link="https://github.com/vllm-project/vllm/issues/50682",
    fix="keep kv-cache-dtype auto unless the answers were checked",
)  # fmt: skip
def fp8_cache_unproven(engine: EngineConfig) -> str | None:
    if on_amd(engine) and cache_dtype(engine).startswith("fp8"):
        return "no released ROCm image is known to serve Kimi K3 with an fp8 KV cache"
    return None


@warning("fastsafetensors-on-amd", fix="set load-format auto")
def fastsafetensors_on_amd(engine: EngineConfig) -> str | None:
    if on_amd(engine) and engine.args.get("load-format") == "fastsafetensors":
        return "fastsafetensors stalls on AMD nodes without direct storage"
    return None

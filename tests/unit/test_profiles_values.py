"""The values of profile version 1, each written out a second time: a change has to be made twice, on purpose."""

from __future__ import annotations

from typing import Any

import pytest

from kimi_k3_operator.profiles.blocks import kv_block_tokens
from kimi_k3_operator.profiles.catalog import Catalog
from kimi_k3_operator.profiles.model import Profile

CATALOG = Catalog.load()
NAMES = ("b300", "gb300", "mi350x", "mi355x")
NVIDIA = ("b300", "gb300")

ALWAYS = {
    "tensor-parallel-size": 8,
    "max-model-len": 1048576,
    "prefix-match-unit": 128,
    "trust-remote-code": True,
    "enable-prefix-caching": True,
    "enable-prompt-tokens-details": True,
    "enable-auto-tool-choice": True,
    "tool-call-parser": "kimi_k3",
    "reasoning-parser": "kimi_k3",
}
BLACKWELL = {
    "kv-cache-dtype": "fp8",
    "load-format": "fastsafetensors",
    "enable-flashinfer-autotune": False,
    "attention-config": {"use_prefill_query_quantization": True, "mla_prefill_backend": "FLASHINFER"},
    "max-cudagraph-capture-size": 256,
}
CDNA4 = {
    "gpu-memory-utilization": 0.88,
    "kv-cache-dtype": "auto",
    "max-num-batched-tokens": 4096,
    "load-format": "auto",
    "compilation-config": {"cudagraph_mode": "FULL_DECODE_ONLY", "custom_ops": ["+fused_rms_norm_gated"]},
}
ARGS: dict[str, dict[str, Any]] = {
    "b300": ALWAYS | BLACKWELL | {"gpu-memory-utilization": 0.90, "max-num-batched-tokens": 16384},
    "gb300": ALWAYS | BLACKWELL | {"gpu-memory-utilization": 0.90, "max-num-batched-tokens": 8192},
    "mi350x": ALWAYS | CDNA4,
    "mi355x": ALWAYS | CDNA4,
}

ENV_ALWAYS = {
    "HF_HUB_OFFLINE": "1",
    "PYTHONHASHSEED": "0",
    "VLLM_DO_NOT_TRACK": "1",
    "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "900",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_RUST_FRONTEND": "0",
}
ENV_AMD = {
    "SAFETENSORS_FAST_GPU": "1",
    "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "1200",
    "VLLM_ROCM_USE_AITER": "1",
    "VLLM_ROCM_USE_AITER_MOE_SITUV2_A8W4": "1",
    "VLLM_USE_BREAKABLE_CUDAGRAPH": "0",
}
ENV = {
    "b300": ENV_ALWAYS | {"VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "1200"},
    "gb300": ENV_ALWAYS
    | {
        "GLOO_SOCKET_IFNAME": "eth0",
        "NCCL_CUMEM_ENABLE": "1",
        "NCCL_MNNVL_ENABLE": "1",
        "NCCL_NVLS_ENABLE": "1",
        "NCCL_SOCKET_IFNAME": "eth0",
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "1800",
        "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "1800",
        "VLLM_FLASHINFER_ALLREDUCE_BACKEND": "mnnvl",
        "VLLM_USE_NCCL_SYMM_MEM": "0",
    },
    "mi350x": ENV_ALWAYS | ENV_AMD,
    "mi355x": ENV_ALWAYS | ENV_AMD,
}

VALUES: dict[str, dict[str, Any]] = {
    "b300": {
        "hardware.vendor": "nvidia",
        "hardware.gpu_resource": "nvidia.com/gpu",
        "hardware.gpus_per_node": 8,
        "hardware.nodes_per_replica": 1,
        "hardware.architecture": "amd64",
        "hardware.domain_labels": (),
        "engine.image.reference": "vllm/vllm-openai:v0.30.0",
        "memory.gib_per_gpu": 268,
        "memory.shm_gib": 64,
        "memory.kv_tokens": 24849 * 128,
        "memory.kv_tokens_with_draft": 19430 * 128,
        "routing.lru_capacity_per_server": 24849,
        "routing.lru_capacity_per_server_with_draft": 19430,
        "routing.peak_prefill_tokens_per_second": 21500,
        "speculation.explicit_tokens": 7,
        "startup.readers_per_replica": 1,
    },
    "gb300": {
        "hardware.vendor": "nvidia",
        "hardware.gpu_resource": "nvidia.com/gpu",
        "hardware.gpus_per_node": 4,
        "hardware.nodes_per_replica": 2,
        "hardware.architecture": "arm64",
        "hardware.domain_labels": (
            "nvidia.com/gpu.clique",
            "cloud.google.com/gce-topology-subblock",
            "topology.k8s.aws/ultraserver-id",
            "ds.coreweave.com/nvlink.domain",
            "oci.oraclecloud.com/host.gpu_memory_fabric_id",
            "accelerator.topograph.run/domain",
        ),
        "engine.image.reference": "vllm/vllm-openai:v0.30.0",
        "memory.gib_per_gpu": 277,
        "memory.shm_gib": 200,
        "memory.kv_tokens": 29664 * 128,
        "memory.kv_tokens_with_draft": 23295 * 128,
        "routing.lru_capacity_per_server": 29664,
        "routing.lru_capacity_per_server_with_draft": 23295,
        "routing.peak_prefill_tokens_per_second": 21500,
        "speculation.explicit_tokens": 7,
        "startup.readers_per_replica": 2,
    },
    "mi350x": {
        "hardware.vendor": "amd",
        "hardware.gpu_resource": "amd.com/gpu",
        "hardware.gpus_per_node": 8,
        "hardware.nodes_per_replica": 1,
        "hardware.architecture": "amd64",
        "hardware.domain_labels": (),
        "engine.image.reference": "vllm/vllm-openai-rocm:v0.30.0",
        "memory.gib_per_gpu": 288,
        "memory.shm_gib": 64,
        "memory.kv_tokens": 16013 * 128,
        "memory.kv_tokens_with_draft": 12779 * 128,
        "routing.lru_capacity_per_server": 16013,
        "routing.lru_capacity_per_server_with_draft": 12779,
        "routing.peak_prefill_tokens_per_second": 9700,
        "speculation.explicit_tokens": 2,
        "startup.readers_per_replica": 1,
    },
}
VALUES["mi355x"] = VALUES["mi350x"]

SAME_EVERYWHERE = {
    "version": "1",
    "channel": "stable",
    "engine.version": "0.30.0",
    "engine.image.digest": None,
    "engine.command": ("vllm", "serve"),
    "routing.prefix_block_tokens": 128,
    "startup.weight_bytes": 1_561_000_000_000,
    "startup.host_path_bytes_per_second": 3_000_000_000,
    "startup.shared_claim_bytes_per_second": 300_000_000,
    "startup.fixed_seconds": 900,
    "startup.minimum_seconds": 3600,
    "startup.minimum_seconds_shared_claim": 7200,
}

SEQUENCES = {
    "b300": {8: 16, 16: 32, 32: 64},
    "gb300": {8: 16, 16: 32, 32: 64},
    "mi350x": {8: 20, 16: 32, 32: 64},
    "mi355x": {8: 20, 16: 32, 32: 64},
}


def profile(name: str) -> Profile:
    return CATALOG.get(name, "1")


def value_at(name: str, path: str) -> Any:
    value: Any = profile(name)
    for part in path.split("."):
        value = getattr(value, part)
    return value


def test_four_profiles_are_shipped():
    assert CATALOG.names() == NAMES
    assert {name: CATALOG.versions(name) for name in NAMES} == dict.fromkeys(NAMES, ("1",))


@pytest.mark.parametrize("name", NAMES)
def test_engine_arguments(name: str):
    assert profile(name).engine.args == ARGS[name]


@pytest.mark.parametrize("name", NAMES)
def test_engine_environment(name: str):
    assert profile(name).engine.env == ENV[name]


@pytest.mark.parametrize(("name", "path"), [(name, path) for name in NAMES for path in VALUES[name]])
def test_values(name: str, path: str):
    assert value_at(name, path) == VALUES[name][path]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("path", SAME_EVERYWHERE)
def test_values_that_all_profiles_share(name: str, path: str):
    assert value_at(name, path) == SAME_EVERYWHERE[path]


@pytest.mark.parametrize("name", NAMES)
def test_bands_limit_the_sequences_and_nothing_else(name: str):
    assert {b.max_concurrency: b.args for b in profile(name).bands} == {
        limit: {"max-num-seqs": sequences} for limit, sequences in SEQUENCES[name].items()
    }


@pytest.mark.parametrize("name", NVIDIA)
def test_auto_drafts_at_low_concurrency_and_short_contexts_on_nvidia(name: str):
    rules = profile(name).speculation.auto
    assert [(r.max_concurrency, r.max_context_tokens, r.tokens) for r in rules] == [(8, 16384, 7), (16, 16384, 3)]


@pytest.mark.parametrize("name", ["mi350x", "mi355x"])
def test_auto_never_drafts_on_amd(name: str):
    assert profile(name).speculation.auto == ()


@pytest.mark.parametrize(
    ("name", "backend"),
    [("b300", "FLASHINFER_MLA"), ("gb300", "FLASHINFER_MLA"), ("mi350x", "TRITON_MLA"), ("mi355x", "TRITON_MLA")],
)
def test_draft_configuration(name: str, backend: str):
    speculation = profile(name).speculation
    assert speculation.drafts[0].id == "Inferact/Kimi-K3-DSpark"
    assert {d.id: d.block_size for d in speculation.drafts} == {
        "Inferact/Kimi-K3-DSpark": 7,
        "Inferact/Kimi-K3-DSpark-Block5": 5,
        "RedHatAI/Kimi-K3-speculator.dspark": 8,
    }
    assert speculation.config == {
        "attention_backend": backend,
        "draft_sample_method": "probabilistic",
        "rejection_sample_method": "block",
    }


@pytest.mark.parametrize(
    ("name", "env"),
    [
        ("b300", {"VLLM_SSM_CONV_STATE_LAYOUT": "DS"}),
        (
            "gb300",
            {"VLLM_SSM_CONV_STATE_LAYOUT": "DS", "UCX_CUDA_IPC_ENABLE_MNNVL": "y", "NCCL_NET_PLUGIN": "none"},
        ),
    ],
)
def test_disaggregation_on_nvidia(name: str, env: dict[str, str]):
    apart = profile(name).disaggregation
    assert apart is not None
    assert (apart.connector, apart.kv_role, apart.kv_load_failure_policy) == ("NixlConnector", "kv_both", "fail")
    assert apart.side_channel_port == 5600
    assert apart.args == {"enable-cumem-allocator": True, "disable-hybrid-kv-cache-manager": False}
    assert apart.env == env
    assert apart.prefill.args == {
        "gpu-memory-utilization": 0.90,
        "max-num-seqs": 8,
        "max-num-batched-tokens": 16384,
    }
    assert apart.decode.args == {"gpu-memory-utilization": 0.85, "max-num-seqs": 64, "max-num-batched-tokens": 4096}


@pytest.mark.parametrize("name", ["mi350x", "mi355x"])
def test_disaggregation_is_refused_on_amd_with_a_reason(name: str):
    assert profile(name).disaggregation is None
    assert "MoRI-IO" in (profile(name).disaggregation_refusal or "")


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("b300", ("nvidia.com/gpu.product", ("NVIDIA-B300-SXM6-AC", "NVIDIA-B300-SXM6-PC"))),
        ("gb300", ("nvidia.com/gpu.product", ("NVIDIA-GB300",))),
        ("mi350x", ("amd.com/gpu.device-id", ("75a0",))),
        ("mi355x", ("amd.com/gpu.device-id", ("75a3",))),
    ],
)
def test_nodes_are_chosen_by_the_most_certain_label_first(name: str, first: tuple[str, tuple[str, ...]]):
    (requirement,) = profile(name).hardware.node_selection[0]
    assert (requirement.key, requirement.values) == first


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("b300", ["nvidia.com/gpu"]),
        ("gb300", ["nvidia.com/gpu", "kubernetes.io/arch"]),
        ("mi350x", ["amd.com/gpu"]),
        ("mi355x", ["amd.com/gpu"]),
    ],
)
def test_tolerations(name: str, keys: list[str]):
    assert [t.key for t in profile(name).hardware.tolerations] == keys


@pytest.mark.parametrize(
    ("name", "exceptions"),
    [
        ("b300", {("runAsUser=0", "always"), ("capabilities.add=IPC_LOCK", "disaggregated")}),
        ("gb300", {("runAsUser=0", "always")}),
        ("mi350x", {("runAsUser=0", "always")}),
        ("mi355x", {("runAsUser=0", "always")}),
    ],
)
def test_security_exceptions_are_only_what_the_engine_needs(name: str, exceptions: set[tuple[str, str]]):
    assert {(e.setting, e.applies) for e in profile(name).security_exceptions} == exceptions


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_holds_a_block_and_every_sequence_with_its_draft_tokens(name: str):
    shipped = profile(name)
    allowed = {0, shipped.speculation.explicit_tokens, 7, *(rule.tokens for rule in shipped.speculation.auto)}
    for band in shipped.bands:
        args = {**shipped.engine.args, **band.args}
        for tokens in allowed:
            assert int(str(args["max-num-batched-tokens"])) >= needed(args, tokens), (band.max_concurrency, tokens)


@pytest.mark.parametrize("name", NVIDIA)
def test_a_batch_fits_in_both_roles(name: str):
    shipped = profile(name)
    assert shipped.disaggregation is not None
    for role in (shipped.disaggregation.prefill, shipped.disaggregation.decode):
        args = {**shipped.engine.args, **role.args}
        assert int(str(args["max-num-batched-tokens"])) >= needed(args, 0)


def needed(args: dict[str, Any], draft_tokens: int) -> int:
    block = kv_block_tokens(
        tensor_parallel=args["tensor-parallel-size"],
        kv_cache_dtype=args["kv-cache-dtype"],
        draft_tokens=draft_tokens,
    )
    return block + (draft_tokens + 1) * int(args["max-num-seqs"])


@pytest.mark.parametrize(("name", "block"), [("b300", 1536), ("gb300", 1536), ("mi350x", 768), ("mi355x", 768)])
def test_block_size_of_each_profile(name: str, block: int):
    args = profile(name).engine.args
    assert needed({**args, "max-num-seqs": 0}, 0) == block

"""Kernels, experts, ranks and the variables of AMD engines."""

from __future__ import annotations

from tests.policies.engines import LATENCY, SITU_30, SITU_31, V1, Row, amd, engine

ROWS: list[Row] = [
    # amd
    ("situ-variable", engine("mi350x", version="0.31.0"), amd("0.31.0")),
    ("situ-variable", amd("0.30.0", {"AITER_SITUV2_A8W4": "1"}), amd("0.30.0")),
    ("situ-variable", amd("0.30.0", {SITU_30: None}), engine()),
    ("situ-variable", amd("0.28.0", {SITU_30: "0"}), amd("0.28.0")),
    ("situ-precision", amd("0.31.0", {SITU_31: None}), amd("0.31.0")),
    ("situ-precision", amd("0.33.0", {SITU_31: "a4w4"}), engine(version="0.33.0")),
    ("aiter-off", amd("0.30.0", {"VLLM_ROCM_USE_AITER": None}), amd("0.30.0")),
    ("aiter-off", amd("0.30.0", {"VLLM_ROCM_USE_AITER_MOE": "0"}), amd("0.30.0", {"VLLM_ROCM_USE_AITER_MOE": "1"})),
    ("breakable-graphs-on-rocm", amd("0.28.0", {"VLLM_USE_BREAKABLE_CUDAGRAPH": None}), amd("0.28.0")),
    ("dcp-on-rocm", amd("0.28.0", decode_context_parallel_size=8), amd("0.29.0", decode_context_parallel_size=8)),
    (
        "dcp-on-rocm",
        amd("0.28.0", decode_context_parallel_size=8),
        engine(version="0.28.0", decode_context_parallel_size=8),
    ),
    ("fp8-kv-on-amd", amd("0.28.0", kv_cache_dtype="fp8"), amd("0.28.0", kv_cache_dtype="bfloat16")),
    ("fp8-kv-on-amd-unproven", amd("0.30.0", kv_cache_dtype="fp8"), engine(kv_cache_dtype="fp8")),
    ("fastsafetensors-on-amd", amd("0.30.0", load_format="fastsafetensors"), engine(load_format="fastsafetensors")),
    # attention
    ("kv-cache-dtype", engine(kv_cache_dtype="int3"), engine(kv_cache_dtype="fp8_e4m3")),
    ("kv-cache-dtype", engine(kv_cache_dtype="nvfp4"), engine(kv_cache_dtype="bfloat16")),
    ("model-dtype", engine(dtype="float16"), engine(dtype="bfloat16")),
    ("quantization", engine(quantization="fp8"), engine()),
    ("ssm-cache-dtype", engine(mamba_ssm_cache_dtype="float16"), engine(mamba_ssm_cache_dtype="float32")),
    (
        "ssm-cache-dtype",
        engine(version="0.29.0", mamba_ssm_cache_dtype="bfloat16"),
        engine(version="0.30.0", mamba_ssm_cache_dtype="bfloat16"),
    ),
    ("attention-backend", engine(attention_backend="FLASH_ATTN_MLA"), engine(attention_backend="FLASHMLA")),
    ("attention-backend", amd("0.30.0", attention_backend="FLASHMLA"), amd("0.30.0", attention_backend="triton_mla")),
    ("attention-backend", engine(attention_config='{"backend":"FLASH_ATTN"}'), engine(attention_backend="auto")),
    (
        "prefill-backend",
        engine(attention_config='{"mla_prefill_backend":"ROCM_AITER_FA"}'),
        engine(attention_config='{"mla_prefill_backend":"flashinfer"}'),
    ),
    (
        "prefill-backend",
        amd("0.30.0", attention_config={"mla_prefill_backend": "TRTLLM_RAGGED"}),
        amd("0.30.0", attention_config={"mla_prefill_backend": "ROCM_AITER_FA"}),
    ),
    (
        "attention-backend-twice",
        engine(attention_backend="TRITON_MLA", attention_config='{"backend":"TRITON_MLA"}'),
        engine(attention_backend="TRITON_MLA", attention_config='{"flash_attn_version":3}'),
    ),
    (
        "attention-config-key",
        engine(version="0.32.0", attention_config='{"trtllm_ragged_backend":"x"}'),
        engine(version="0.33.0", attention_config='{"trtllm_ragged_backend":"x"}'),
    ),
    (
        "tokenspeed-needs-fp8",
        engine(attention_backend="TOKENSPEED_MLA", kv_cache_dtype="auto"),
        engine(attention_backend="TOKENSPEED_MLA", kv_cache_dtype="fp8"),
    ),
    ("kda-backend", amd("0.30.0", kda_prefill_backend="flashkda"), engine(kda_prefill_backend="flashkda")),
    ("kda-backend", engine(kda_prefill_backend="fused"), amd("0.30.0", kda_prefill_backend="fused")),
    (
        "kda-backend",
        engine(version="0.29.0", kda_prefill_backend="flashinfer"),
        engine(version="0.30.0", kda_prefill_backend="flashinfer"),
    ),
    # moe
    (
        "moe-backend",
        amd("0.29.0", moe_backend="aiter_triton_mxfp4_bf16"),
        amd("0.30.0", moe_backend="aiter_triton_mxfp4_bf16"),
    ),
    ("moe-backend", engine(moe_backend="aiter"), engine(moe_backend="marlin")),
    ("moe-backend", amd("0.30.0", moe_backend="cutlass"), amd("0.30.0", moe_backend="triton")),
    ("all2all-backend", engine(all2all_backend="passthrough"), engine(all2all_backend="naive")),
    ("all2all-backend", engine(version="0.31.0", all2all_backend="moonep"), engine(all2all_backend="deepep_v2")),
    (
        "mega-moe-expert-parallel",
        engine("gb300", moe_backend="deep_gemm_mega_moe"),
        engine("gb300", moe_backend="deep_gemm_mega_moe", enable_expert_parallel=True),
    ),
    (
        "mega-moe-hardware",
        engine(moe_backend="deep_gemm_mega_moe", enable_expert_parallel=True),
        engine("gb300", moe_backend="deep_gemm_mega_moe", enable_expert_parallel=True),
    ),
    # parallelism
    ("tensor-parallel-gpus", engine(tensor_parallel_size=4), engine(tensor_parallel_size=8)),
    (
        "tensor-parallel-gpus",
        engine(pipeline_parallel_size=2),
        engine(tensor_parallel_size=4, pipeline_parallel_size=2),
    ),
    ("dcp-divides-tp", engine(decode_context_parallel_size="3"), engine(decode_context_parallel_size="4")),
    (
        "dcp-communication",
        engine(version="0.28.0", dcp_comm_backend="a2a"),
        engine(version="0.28.0", dcp_comm_backend="a2a", decode_context_parallel_size="8"),
    ),
    ("dcp-communication", engine(dcp_comm_backend="nccl"), engine(dcp_comm_backend="a2a")),
    (
        "pipeline-with-v1-runner",
        engine(version="0.31.0", env=V1, pipeline_parallel_size=2),
        engine(version="0.31.0", env=V1, pipeline_parallel_size=2, async_scheduling=False),
    ),
    ("api-servers-of-a-group", engine("gb300", api_server_count="2"), engine(api_server_count="2")),
    (
        "allreduce-over-nodes",
        engine("gb300", env={"VLLM_FLASHINFER_ALLREDUCE_BACKEND": "trtllm"}),
        engine(env={"VLLM_FLASHINFER_ALLREDUCE_BACKEND": "trtllm"}),
    ),
    (
        "specialized-decode",
        engine(version="0.32.0", additional_config=LATENCY),
        engine(version="0.33.0", additional_config=LATENCY),
    ),
    (
        "specialized-decode",
        engine(version="0.33.0", additional_config=LATENCY, decode_context_parallel_size=4),
        engine(version="0.33.0", additional_config=LATENCY, decode_context_parallel_size=8),
    ),
    (
        "specialized-decode",
        amd("0.33.0", additional_config=LATENCY),
        amd("0.33.0", additional_config=LATENCY, drafted=True),
    ),
]

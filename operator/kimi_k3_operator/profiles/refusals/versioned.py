"""Values and keys that come and go between releases, from their configuration modules (vLLM wheels 0.28 to 0.33)."""

from __future__ import annotations

from collections.abc import Mapping

from packaging.specifiers import SpecifierSet

ATTENTION_KEYS: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "backend", "backend_per_kind", "disable_flashinfer_q_quantization",
            "flash_attn_max_num_splits_for_cuda_graph",
            "flash_attn_version", "flex_attn_block_m", "flex_attn_block_n", "flex_attn_kv_block_size",
            "flex_attn_q_block_size", "indexer_kv_dtype", "minimax_m3_msa_decode_backend", "mla_prefill_backend",
            "sparse_mla_force_mqa", "tq_max_kv_splits_for_cuda_graph", "use_non_causal",
            "use_prefill_query_quantization", "use_trtllm_attention",
        ),
        "",
    ),
    "use_prefill_decode_attention": "<0.29",
    "use_fp4_indexer_cache": "<0.30",
    "hisparse_config": ">=0.30",
    "indexer_sparse_logits": ">=0.31",
    "sparse_mla_prefill_workspace_factor": ">=0.32",
    "tokenspeed_mla_min_split_kv": ">=0.32",
    "indexer_tp_shard_min_rows": ">=0.33",
    "minimax_m3_indexer_cp": ">=0.33",
    "trtllm_ragged_backend": ">=0.33",
}  # fmt: skip
"""Key of `attention-config` to the versions that have it."""

MOE_BACKENDS: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "aiter", "auto", "batched_triton", "cutlass", "deep_gemm", "deep_gemm_mega_moe", "emulation",
            "flashinfer_b12x", "flashinfer_cutedsl", "flashinfer_cutlass", "flashinfer_trtllm", "flydsl", "hpc",
            "humming", "marlin", "triton", "triton_unfused",
        ),
        "",
    ),
    "b12x": ">=0.29",
    "flashinfer_moe_ep_mega_deep_gemm": ">=0.29",
    "flashinfer_moe_ep_mega_cutedsl": ">=0.29,<0.32",
    "aiter_triton_mxfp4_bf16": ">=0.30",
    "rdna3": ">=0.30",
    "aiter_mega_moe": ">=0.32",
    "flashinfer_moe_ep_cutedsl": ">=0.32",
    "aiter_triton_mxfp4_mxfp4": ">=0.33",
}  # fmt: skip
"""Value of `moe-backend` to the versions that have it."""

ALL2ALL_BACKENDS: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "allgather_reducescatter", "deepep_high_throughput", "deepep_low_latency", "deepep_v2",
            "flashinfer_all2allv", "flashinfer_nvlink_one_sided", "flashinfer_nvlink_two_sided",
            "mori_high_throughput", "mori_low_latency", "naive", "nixl_ep", "pplx",
        ),
        "",
    ),
    "moonep": ">=0.31",
}  # fmt: skip
"""Value of `all2all-backend` to the versions that have it."""


def known_in(table: Mapping[str, str], version: str) -> frozenset[str]:
    """The names of the table that the version has."""
    return frozenset(name for name, engines in table.items() if SpecifierSet(engines).contains(version))

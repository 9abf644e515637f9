"""Cache, memory, KV transfer and the HTTP side."""

from __future__ import annotations

from tests.policies.engines import EVENTS, EXPANDABLE, NIXL, RUST, Row, amd, engine

ROWS: list[Row] = [
    # cache
    ("kv-block", engine(tensor_parallel_size=5), engine(tensor_parallel_size=8)),
    ("block-size", engine(block_size="1536"), engine()),
    ("prefix-match-unit", engine(prefix_match_unit=100), engine(prefix_match_unit="64")),
    ("hybrid-manager-off", engine(disable_hybrid_kv_cache_manager=True), engine(disable_hybrid_kv_cache_manager=False)),
    (
        "mamba-block-without-caching",
        engine(mamba_block_size="1024", enable_prefix_caching=False),
        engine(mamba_block_size="1024"),
    ),
    (
        "caching-needs-chunks",
        engine(enable_chunked_prefill=False),
        engine(enable_chunked_prefill=False, enable_prefix_caching=False),
    ),
    ("caching-needs-chunks", engine(disable_chunked_mm_input=True), engine(disable_chunked_mm_input=False)),
    (
        "retention-interval",
        engine(prefix_cache_retention_interval="1000"),
        engine(prefix_cache_retention_interval="3072"),
    ),
    (
        "retention-interval",
        engine(version="0.28.0", env={"VLLM_PREFIX_CACHE_RETENTION_INTERVAL": "768"}),
        engine(version="0.28.0", env={"VLLM_PREFIX_CACHE_RETENTION_INTERVAL": "0"}),
    ),
    (
        "retention-interval",
        engine(prefix_cache_retention_interval="1536", decode_context_parallel_size="8"),
        engine(prefix_cache_retention_interval="12288", decode_context_parallel_size="8"),
    ),
    (
        "needs-prefix-caching",
        engine(enable_prefix_caching=False),
        engine(enable_prefix_caching=False, prefix_match_unit=None),
    ),
    (
        "needs-prefix-caching",
        engine(enable_prefix_caching=False, prefix_match_unit=None, kv_events_config=EVENTS),
        engine(kv_events_config=EVENTS),
    ),
    ("prefix-caching-off", engine(enable_prefix_caching=False), engine(enable_prefix_caching=None)),
    (
        "interleave-with-draft",
        engine(drafted=True, decode_context_parallel_size=8, cp_kv_cache_interleave_size="16"),
        engine(decode_context_parallel_size=8, cp_kv_cache_interleave_size="16"),
    ),
    (
        "interleave-with-draft",
        engine(
            drafted=True,
            version="0.31.0",
            decode_context_parallel_size=8,
            dcp_kv_cache_interleave_size="16",
            attention_backend="TOKENSPEED_MLA",
        ),
        engine(
            drafted=True,
            version="0.32.0",
            decode_context_parallel_size=8,
            dcp_kv_cache_interleave_size="16",
            attention_backend="TOKENSPEED_MLA",
        ),
    ),
    (
        "interleave-size",
        engine(decode_context_parallel_size=8, cp_kv_cache_interleave_size="1000"),
        engine(cp_kv_cache_interleave_size="1000"),
    ),
    # disaggregation
    (
        "nixl-state-layout",
        engine(kv_transfer_config=NIXL),
        engine(kv_transfer_config=NIXL, env={"VLLM_SSM_CONV_STATE_LAYOUT": "DS"}),
    ),
    (
        "nixl-with-dcp",
        engine(kv_transfer_config=NIXL, decode_context_parallel_size=4),
        engine(kv_transfer_config=NIXL, decode_context_parallel_size=8),
    ),
    (
        "nixl-with-dcp",
        engine(kv_transfer_config=NIXL, version="0.29.0", decode_context_parallel_size=8),
        engine(version="0.29.0", decode_context_parallel_size=8),
    ),
    (
        "nixl-with-pp",
        engine(kv_transfer_config=NIXL, tensor_parallel_size=4, pipeline_parallel_size=2),
        engine(tensor_parallel_size=4, pipeline_parallel_size=2),
    ),
    (
        "hybrid-connector",
        engine(kv_transfer_config={"kv_connector": "LMCacheConnectorV1"}),
        engine(kv_transfer_config=NIXL),
    ),
    (
        "hybrid-connector",
        amd("0.30.0", kv_transfer_config={"kv_connector": "MoRIIOConnector"}),
        amd("0.31.0", kv_transfer_config={"kv_connector": "MoRIIOConnector"}),
    ),
    (
        "kv-events-port",
        engine(kv_transfer_config=NIXL, kv_events_config=EVENTS),
        engine(kv_transfer_config=NIXL, kv_events_config={"enable_kv_cache_events": True}),
    ),
    # frontend
    ("rust-frontend", engine(env=RUST, stream_interval="10"), engine(stream_interval="10")),
    ("rust-frontend", engine(env=RUST, root_path="/k3"), engine(env=RUST, max_num_queued_reqs="9")),
    (
        "rust-frontend",
        engine(env=RUST, version="0.31.0", max_num_queued_reqs="9"),
        engine(env=RUST, version="0.32.0", stream_interval="10"),
    ),
    (
        "log-outputs",
        engine(enable_log_outputs=True),
        engine(enable_log_outputs=True, enable_log_requests=True),
    ),
    (
        "queue-limit-per-server",
        engine(max_num_queued_tokens="9", api_server_count="2"),
        engine(max_num_queued_reqs="9", api_server_count="2"),
    ),
    (
        "queue-limit-per-server",
        engine(version="0.29.0", max_num_queued_reqs="9", api_server_count="2"),
        engine(version="0.29.0", max_num_queued_reqs="9", api_server_count="1"),
    ),
    ("strict-tool-calls-off", engine(env={"VLLM_ENFORCE_STRICT_TOOL_CALLING": "0"}), engine()),
    (
        "developer-endpoints",
        engine(env={"VLLM_SERVER_DEV_MODE": "1"}),
        engine(env={"VLLM_SERVER_DEV_MODE": "0"}),
    ),
    # memory
    ("batch-limits", engine(max_num_seqs=None), engine(max_num_seqs="1")),
    ("batched-tokens", engine(max_num_batched_tokens=512), engine(max_num_batched_tokens=8192)),
    ("batched-tokens", engine(max_num_batched_tokens=1551), engine(max_num_batched_tokens=1552)),
    (
        "batched-tokens",
        engine(drafted=True, max_num_batched_tokens=2048, max_num_seqs=512),
        engine(drafted=True, max_num_batched_tokens=8192, max_num_seqs=512),
    ),
    (
        "chunked-prefill-off",
        engine(enable_chunked_prefill=False),
        engine(enable_chunked_prefill=False, max_model_len="16384"),
    ),
    ("max-model-len", engine(max_model_len=2_000_000), engine(max_model_len=1_048_576)),
    ("max-model-len", engine(max_model_len=1000), engine(max_model_len=1024)),
    ("memory-share-twice", engine(device_memory_utilization="0.8"), engine(gpu_memory_utilization="0.8")),
    ("memory-share-too-low", engine(gpu_memory_utilization="0.6"), engine(gpu_memory_utilization="0.8")),
    ("memory-share-too-low", engine(gpu_memory_utilization="0.6"), amd("0.30.0", gpu_memory_utilization="0.7")),
    ("memory-share-too-high", engine(gpu_memory_utilization="0.95"), engine(gpu_memory_utilization="0.90")),
    ("memory-share-too-high", engine(gpu_memory_utilization=None), engine(gpu_memory_utilization="0.5")),
    ("kv-capacity", engine(load=(9, 131072)), engine(load=(8, 1048576))),
    ("kv-capacity", engine(load=(9, 131072)), engine(load=(32, 131071))),
    ("kv-capacity", engine(load=(9, 131072)), engine(load=(9, 131072), decode_context_parallel_size="8")),
    ("performance-mode", engine(performance_mode="throughput"), engine(performance_mode="balanced")),
    ("random-weights", engine(load_format="dummy"), engine(load_format="safetensors")),
    ("load-format", engine(load_format="npcache"), engine(load_format="runai_streamer")),
    (
        "expandable-segments",
        engine(kv_transfer_config=NIXL, env=EXPANDABLE),
        engine(kv_transfer_config=NIXL, env=EXPANDABLE, enable_cumem_allocator=True),
    ),
    ("expandable-segments", engine(kv_offloading_size="64", env=EXPANDABLE), engine(env=EXPANDABLE)),
]

"""Flags and variables that the operator alone sets, each with the field to use instead, or the reason."""

from __future__ import annotations

from collections.abc import Mapping

RESERVED_ARGS: Mapping[str, str] = {
    "model": "set spec.weights",
    "served-model-name": "set spec.model.servedName",
    "revision": "set spec.model.revision",
    "host": "the engine listens on all addresses of its pod",
    "port": "probes and Services know port 8000",
    "api-key": "set spec.routing.auth",
    "ssl-keyfile": "set spec.routing.tls",
    "ssl-certfile": "set spec.routing.tls",
    "tensor-parallel-size": "the profile matches it to the GPUs of a replica",
    "pipeline-parallel-size": "the profile matches it to the GPUs of a replica",
    **dict.fromkeys(
        (
            "data-parallel-address", "data-parallel-backend", "data-parallel-external-lb", "data-parallel-hybrid-lb",
            "data-parallel-multi-port-external-lb", "data-parallel-rank", "data-parallel-rpc-port",
            "data-parallel-size", "data-parallel-size-local", "data-parallel-start-rank",
        ),
        "a replica is one engine; raise replicas",
    ),
    "distributed-executor-backend": "the operator forms the group",
    "device-ids": "a replica has all GPUs of its nodes",
    "nnodes": "the operator forms the group",
    "node-rank": "the operator forms the group",
    "master-addr": "the operator forms the group",
    "master-port": "the operator forms the group",
    "headless": "the operator forms the group",
    "tool-call-parser": "Kimi K3 needs kimi_k3",
    "reasoning-parser": "Kimi K3 needs kimi_k3",
    "enable-auto-tool-choice": "the kimi_k3 parsers need it",
    "chat-template": "Kimi K3 renders with code of its own, not with a template",
    "tokenizer-mode": "the engine chooses kimi_k3",
    "mamba-cache-mode": "it follows prefix caching",
    "enable-force-include-usage": "it changes the streams that clients get",
    "shutdown-timeout": "set drainSeconds",
    "speculative-config": "set speculation",
    "spec-method": "set speculation",
    "spec-model": "set speculation",
    "spec-tokens": "set speculation",
    "kv-transfer-config": "set disaggregation",
    "trust-remote-code": "Kimi K3 needs it",
}  # fmt: skip

RESERVED_ENV: Mapping[str, str] = {
    "VLLM_ENGINE_READY_TIMEOUT_S": "set startupBudget",
    "VLLM_USE_RUST_FRONTEND": "the Rust front end refuses flags that Kimi K3 needs",
    "VLLM_API_KEY": "set spec.routing.auth",
    "VLLM_NIXL_SIDE_CHANNEL_HOST": "set disaggregation",
    "VLLM_NIXL_SIDE_CHANNEL_PORT": "set disaggregation",
    "VLLM_SSM_CONV_STATE_LAYOUT": "set disaggregation",
    "PYTHONHASHSEED": "cache keys must be the same in all replicas",
    "HF_TOKEN": "set weights.huggingFace.tokenSecretRef",
    "HF_HUB_OFFLINE": "engines never fetch anything at their start",
    "LWS_LEADER_ADDRESS": "LeaderWorkerSet sets it",
    "LWS_GROUP_SIZE": "LeaderWorkerSet sets it",
    "LWS_WORKER_INDEX": "LeaderWorkerSet sets it",
}

"""Drafts."""

from __future__ import annotations

from tests.policies.engines import V1, Row, amd, engine

ROWS: list[Row] = [
    # speculation
    ("draft-tokens", engine(drafted=True, tokens=8), engine(drafted=True, tokens=7)),
    ("draft-tokens", engine(drafted=True, tokens=8, draft="a/b"), engine(drafted=True, tokens=7, draft="a/b")),
    (
        "draft-tokens",
        engine(drafted=True, tokens=8, draft="RedHatAI/Kimi-K3-speculator.dspark"),
        engine(drafted=True, tokens=7, draft="RedHatAI/Kimi-K3-speculator.dspark"),
    ),
    (
        "draft-tokens",
        engine(drafted=True, tokens=6, draft="Inferact/Kimi-K3-DSpark-Block5"),
        engine(drafted=True, tokens=5, draft="Inferact/Kimi-K3-DSpark-Block5"),
    ),
    (
        "dspark-with-dcp",
        engine(drafted=True, version="0.28.0", decode_context_parallel_size=2),
        engine(version="0.28.0", decode_context_parallel_size=2),
    ),
    (
        "dspark-with-dcp-unproven",
        engine(drafted=True, decode_context_parallel_size=2),
        engine(drafted=True, decode_context_parallel_size=1),
    ),
    (
        "dspark-with-pp",
        engine(drafted=True, version="0.29.0", pipeline_parallel_size=2),
        engine(drafted=True, version="0.29.0"),
    ),
    ("dspark-with-v1-runner", engine(drafted=True, env=V1), engine(env=V1)),
    (
        "mtp-without-weights",
        engine(drafted=True, config={"method": "kimi_k3_mtp"}),
        engine(drafted=True, config={"method": "eagle3"}),
    ),
    (
        "speculation-method",
        engine(drafted=True, config={"method": "ngram"}),
        engine(drafted=True, config={"method": "mtp"}),
    ),
    (
        "speculation-key",
        engine(drafted=True, config={"drafts": 1}),
        engine(drafted=True, config={"kv_cache_dtype": "auto"}),
    ),
    (
        "draft-sampling",
        engine(drafted=True, config={"rejection_sample_method": "synthetic"}),
        engine(drafted=True, config={"rejection_sample_method": "standard"}),
    ),
    (
        "draft-sampling",
        engine(drafted=True, config={"draft_sample_method": "random"}),
        engine(drafted=True, config={"draft_sample_method": "greedy"}),
    ),
    (
        "draft-tensor-parallel",
        engine(drafted=True, config={"draft_tensor_parallel_size": "4"}),
        engine(drafted=True, config={"draft_tensor_parallel_size": "8"}),
    ),
    (
        "draft-attention",
        amd("0.29.0", drafted=True, config={"attention_backend": "ROCM_AITER_MLA"}),
        amd("0.30.0", drafted=True, config={"attention_backend": "ROCM_AITER_MLA"}),
    ),
    (
        "draft-attention",
        engine(drafted=True, config={"attention_backend": "ROCM_AITER_MLA"}),
        engine(drafted=True, config={"attention_backend": "TOKENSPEED_MLA"}),
    ),
    (
        "adaptive-verification-graphs",
        engine(drafted=True, config={"enable_adaptive_verification": "true"}, enforce_eager=True),
        engine(drafted=True, config={"enable_adaptive_verification": "true"}),
    ),
    (
        "adaptive-verification-graphs",
        engine(
            drafted=True,
            config={"enable_adaptive_verification": "true"},
            compilation_config='{"cudagraph_mode":"PIECEWISE"}',
        ),
        engine(
            drafted=True,
            config={"enable_adaptive_verification": "true"},
            compilation_config='{"cudagraph_mode":"FULL_DECODE_ONLY"}',
        ),
    ),
    (
        "adaptive-verification-alone",
        engine(drafted=True, config={"enable_adaptive_verification": "true"}, enable_lora=True),
        engine(drafted=True, enable_lora=True),
    ),
    (
        "replayssm-with-draft",
        engine(drafted=True, version="0.28.0", use_replayssm=True),
        engine(version="0.28.0", use_replayssm=True),
    ),
    ("replayssm-without-draft", engine(use_replayssm=True), engine(drafted=True, use_replayssm=True)),
    (
        "cutlass-with-draft",
        engine(drafted=True, attention_backend="CUTLASS_MLA"),
        engine(attention_backend="CUTLASS_MLA"),
    ),
    ("draft-shortens-context", engine(drafted=True, version="0.33.0"), engine(version="0.33.0")),
    (
        "draft-shortens-context",
        engine(drafted=True, version="0.33.0"),
        engine(drafted=True, version="0.33.0", max_model_len="32768"),
    ),
    ("foreign-draft", engine(drafted=True, draft="RadixArk/K3-draft"), engine(draft="RadixArk/K3-draft")),
    (
        "unverified-draft",
        engine(drafted=True, draft="RedHatAI/Kimi-K3-speculator.dspark"),
        engine(draft="RedHatAI/Kimi-K3-speculator.dspark"),
    ),
    ("unverified-draft", engine(drafted=True, draft="somebody/draft"), engine(drafted=True)),
    (
        "draft-on-long-contexts",
        engine(drafted=True, load=(1, 262144)),
        engine(load=(1, 262144)),
    ),
    (
        "draft-on-long-contexts",
        engine(drafted=True, load=(1, 262144)),
        engine(drafted=True, load=(1, 262144), draft="Inferact/Kimi-K3-DSpark-Block5"),
    ),
]

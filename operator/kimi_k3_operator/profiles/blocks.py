"""Size of a KV-cache block of Kimi K3, as vLLM derives it for its hybrid of KDA and MLA layers."""

from __future__ import annotations

ATTENTION_HEADS = 96
KDA_HEAD_DIM = 128
KDA_CONV_STATES = 3
"""Past inputs that a convolution of width 4 keeps, per draft-free step."""
MLA_WIDTH = 576
"""Cached values per token and MLA layer: 512 latent and 64 rotary."""
ALIGNMENT_TOKENS = 128

CACHE_BYTES = {"auto": 2, "bfloat16": 2, "fp8": 1, "fp8_e4m3": 1}
SSM_BYTES = {"auto": 4, "float32": 4, "bfloat16": 2}
CONV_BYTES = 2


def kda_page_bytes(*, tensor_parallel: int, draft_tokens: int, ssm_dtype: str = "auto") -> int:
    """Bytes of one request's KDA state per layer and GPU: recurrent state plus the three convolution states.

    Raises ValueError when the heads do not divide, the number of draft tokens is negative or the dtype is unknown.
    """
    if tensor_parallel < 1 or ATTENTION_HEADS % tensor_parallel:
        raise ValueError(f"{ATTENTION_HEADS} attention heads do not divide over {tensor_parallel} GPUs")
    if draft_tokens < 0:
        raise ValueError(f"draft tokens must not be negative, got {draft_tokens}")
    heads = ATTENTION_HEADS // tensor_parallel
    recurrent = heads * KDA_HEAD_DIM * KDA_HEAD_DIM * _lookup(SSM_BYTES, ssm_dtype, "SSM dtype")
    convolution = 3 * (heads * KDA_HEAD_DIM) * (KDA_CONV_STATES + draft_tokens) * CONV_BYTES
    return recurrent + convolution


def kv_block_tokens(*, tensor_parallel: int, kv_cache_dtype: str, draft_tokens: int, ssm_dtype: str = "auto") -> int:
    """Tokens in one KV block: the fewest multiples of 128 whose MLA page holds one KDA page.

    The same in vLLM 0.28 to 0.33, without decode context parallelism; `bfloat16` as SSM dtype takes effect from 0.30.
    Raises ValueError for a dtype or tensor parallel size that Kimi K3 cannot use.
    """
    page = kda_page_bytes(tensor_parallel=tensor_parallel, draft_tokens=draft_tokens, ssm_dtype=ssm_dtype)
    unit = ALIGNMENT_TOKENS * MLA_WIDTH * _lookup(CACHE_BYTES, kv_cache_dtype, "KV-cache dtype")
    return ALIGNMENT_TOKENS * -(-page // unit)


def _lookup(sizes: dict[str, int], dtype: str, what: str) -> int:
    if dtype not in sizes:
        raise ValueError(f"unknown {what} {dtype!r}, expected one of {', '.join(sizes)}")
    return sizes[dtype]

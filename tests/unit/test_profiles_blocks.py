from __future__ import annotations

import pytest

from kimi_k3_operator.profiles.blocks import kda_page_bytes, kv_block_tokens


@pytest.mark.parametrize(
    ("draft_tokens", "ssm_dtype", "page", "fp8", "bf16"),
    [
        (0, "auto", 814_080, 1536, 768),
        (3, "auto", 841_728, 1536, 768),
        (7, "auto", 878_592, 1536, 768),
        (8, "auto", 887_808, 1664, 896),
        (7, "bfloat16", 485_376, 896, 512),
    ],
)
def test_block_size_at_tensor_parallel_8(draft_tokens: int, ssm_dtype: str, page: int, fp8: int, bf16: int):
    assert kda_page_bytes(tensor_parallel=8, draft_tokens=draft_tokens, ssm_dtype=ssm_dtype) == page
    for dtype, block in (("fp8", fp8), ("fp8_e4m3", fp8), ("bfloat16", bf16), ("auto", bf16)):
        assert (
            kv_block_tokens(tensor_parallel=8, kv_cache_dtype=dtype, draft_tokens=draft_tokens, ssm_dtype=ssm_dtype)
            == block
        )


@pytest.mark.parametrize(("tensor_parallel", "block"), [(4, 2944), (8, 1536), (16, 768)])
def test_block_size_without_draft_by_tensor_parallel_size(tensor_parallel: int, block: int):
    assert kv_block_tokens(tensor_parallel=tensor_parallel, kv_cache_dtype="fp8", draft_tokens=0) == block


@pytest.mark.parametrize("draft_tokens", range(16))
def test_a_block_is_a_multiple_of_every_admitted_prefix_match_unit(draft_tokens: int):
    block = kv_block_tokens(tensor_parallel=8, kv_cache_dtype="fp8", draft_tokens=draft_tokens)
    assert all(block % unit == 0 for unit in (16, 32, 64, 128))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"tensor_parallel": 7}, "96 attention heads do not divide over 7 GPUs"),
        ({"tensor_parallel": 0}, "96 attention heads do not divide over 0 GPUs"),
        ({"kv_cache_dtype": "nvfp4"}, "unknown KV-cache dtype 'nvfp4'"),
        ({"ssm_dtype": "float16"}, "unknown SSM dtype 'float16'"),
        ({"draft_tokens": -1}, "must not be negative"),
    ],
)
def test_impossible_layouts_are_refused(changed: dict[str, object], message: str):
    layout: dict[str, object] = {"tensor_parallel": 8, "kv_cache_dtype": "fp8", "draft_tokens": 0} | changed
    with pytest.raises(ValueError, match=message):
        kv_block_tokens(**layout)  # type: ignore[arg-type]

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.factories import CLAIM, HOST_PATH, HUB, b300, deployment, engine_of
from tests.policies.engines import NIXL, engine

from kimi_k3_operator.profiles.compatibility import compatibility_hash
from kimi_k3_operator.profiles.engine import EngineConfig

ROLE: dict[str, Any] = {"kv_transfer_config": NIXL, "env": {"VLLM_SSM_CONV_STATE_LAYOUT": "DS"}}


def test_roles_with_their_own_batches_and_memory_fit_each_other():
    prefill = engine(**ROLE, max_num_seqs=8, max_num_batched_tokens=16384)
    decode = engine(**ROLE, max_num_seqs=64, max_num_batched_tokens=4096, gpu_memory_utilization="0.85")
    assert compatibility_hash(prefill) == compatibility_hash(decode)


@pytest.mark.parametrize(
    "other",
    [
        engine(**ROLE, version="0.31.0"),
        replace(engine(**ROLE), image="registry.example/vllm:other"),
        engine(**ROLE, kv_cache_dtype="auto"),
        engine(**ROLE, mamba_ssm_cache_dtype="bfloat16"),
        engine(**ROLE, attention_backend="TOKENSPEED_MLA"),
        engine(**ROLE, decode_context_parallel_size="8"),
        engine(**ROLE, tensor_parallel_size=4),
        engine(**ROLE, disable_hybrid_kv_cache_manager=True),
        engine(**ROLE, drafted=True),
        engine(kv_transfer_config=NIXL, env={"VLLM_SSM_CONV_STATE_LAYOUT": "SD"}),
        engine(kv_transfer_config={"kv_connector": "MooncakeConnector"}, env=ROLE["env"]),
    ],
)
def test_what_changes_the_cache_sets_engines_apart(other: EngineConfig):
    assert compatibility_hash(other) != compatibility_hash(engine(**ROLE))


@pytest.mark.parametrize(
    "other",
    [
        engine(drafted=True, tokens=3),
        engine(drafted=True, draft="Inferact/Kimi-K3-DSpark-Block5"),
        engine(drafted=True, config={"attention_backend": "TOKENSPEED_MLA"}),
        engine(drafted=True, config={"kv_cache_dtype": "auto"}),
    ],
)
def test_another_draft_sets_engines_apart(other: EngineConfig):
    assert compatibility_hash(other) != compatibility_hash(engine(drafted=True))


def test_the_weights_may_lie_elsewhere_but_must_be_the_same_revision():
    def hashed(weights: Any, revision: str | None = None) -> str:
        model = {"revision": revision} if revision else {}
        return compatibility_hash(engine_of(deployment(b300(), weights=weights, model=model)))

    assert hashed(CLAIM) == hashed(HOST_PATH)
    assert hashed(HUB, "1111") != hashed(HUB, "2222")

"""Every command line that packaged profiles lead to is taken by the releases that we take it for, and by no other."""

from __future__ import annotations

from itertools import product

import pytest

from kimi_k3_operator.profiles.engine import EngineConfig
from kimi_k3_operator.profiles.flags import FlagTable

from .lines import Ask, Line, answers, packaged

pytestmark = pytest.mark.engine

VERSIONS = ("0.28.0", "0.30.0", "0.33.0")
LINES = [
    Line(profile, band.max_concurrency, mode)
    for profile in packaged()
    for band, mode in product(profile.bands, ("Off", "DSpark"))
]
every_line = pytest.mark.parametrize("line", LINES, ids=str)


@every_line
@pytest.mark.parametrize("version", VERSIONS)
def test_the_project_takes_a_line_exactly_where_the_engine_does(ask: Ask, version: str, line: Line):
    refused = {answer["error"] for answer in answers(ask, version, line) if not answer["accepted"]}
    ours = line.resolve(version)
    assert isinstance(ours, EngineConfig) is not bool(refused), (ours, refused)


@every_line
def test_the_pinned_engine_understands_a_line_as_meant(ask: Ask, line: Line):
    engine = line.resolve()
    assert isinstance(engine, EngineConfig)
    for rank, answer in enumerate(answers(ask, engine.engine_version, line)):
        assert answer["accepted"], answer["error"]
        assert answer["config"] == {
            "world_size": line.profile.hardware.gpus_per_replica,
            "node_rank": rank,
            "decode_context_parallel_size": engine.int_arg("decode-context-parallel-size", 1),
            "max_model_len": engine.int_arg("max-model-len"),
            "tokenizer_mode": "kimi_k3",
            "kv_cache_dtype": engine.args["kv-cache-dtype"],
            "prefix_caching": True,
            "gpu_memory_utilization": engine.args["gpu-memory-utilization"],
            "max_num_seqs": engine.int_arg("max-num-seqs"),
            "max_num_batched_tokens": engine.int_arg("max-num-batched-tokens"),
            "speculative_tokens": engine.speculation.tokens,
            "speculative_method": "dspark" if engine.speculation.tokens else None,
        }


@pytest.mark.parametrize("version", FlagTable.load().versions)
def test_a_wrong_option_is_refused(ask: Ask, version: str):
    line = Line(packaged("b300")[0], args=(("bogus-flag", ""),))
    (answer,) = answers(ask, version, line)
    assert (answer["accepted"], answer["stage"]) == (False, "parser")
    assert "--bogus-flag" in answer["error"]

from __future__ import annotations

import pytest

from kimi_k3_operator.profiles.catalog import Catalog
from kimi_k3_operator.profiles.checks import argument_sections, environment_sections
from kimi_k3_operator.profiles.flags import FlagTable

TABLE = FlagTable.load()
NAMES = Catalog.load().names()


def test_supported_versions():
    assert TABLE.versions == ("0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0")
    assert TABLE.supports("0.30.0")
    assert not TABLE.supports("0.27.1")


@pytest.mark.parametrize(
    ("name", "versions"),
    [
        ("max-num-seqs", TABLE.versions),
        ("prefix-cache-retention-interval", TABLE.versions[1:]),
        ("kda-decode-backend", TABLE.versions[2:]),
        ("enable-mamba-fine-grained-prefix-cache", ("0.30.0",)),
        ("tool-strict-level", TABLE.versions[3:]),
        ("reasoning-effort-map", ("0.33.0",)),
        ("calculate-kv-scales", ()),
        ("bogus-flag", ()),
    ],
)
def test_versions_that_know_a_flag(name: str, versions: tuple[str, ...]):
    assert TABLE.flag_versions(name) == versions
    assert tuple(v for v in TABLE.versions if TABLE.knows_flag(name, v)) == versions


@pytest.mark.parametrize("spelling", ["max-num-seqs", "--max-num-seqs", "max_num_seqs", "no-enable-prefix-caching"])
def test_a_flag_is_known_in_every_spelling_the_parser_takes(spelling: str):
    assert TABLE.knows_flag(spelling, "0.30.0")


@pytest.mark.parametrize(
    ("name", "versions"),
    [
        ("VLLM_ROCM_USE_AITER_MOE_SITUV2_A8W4", ("0.28.0", "0.29.0", "0.30.0")),
        ("VLLM_ROCM_USE_AITER_MOE_SITUV2", ("0.31.0", "0.32.0", "0.33.0")),
        ("AITER_SITUV2_A8W4", ()),
        ("VLLM_RPC_TIMEOUT", ()),
        ("VLLM_NO_USAGE_STATS", TABLE.versions),
        ("NCCL_MNNVL_ENABLE", TABLE.versions),
        ("SOME_OTHER_VARIABLE", ()),
    ],
)
def test_versions_that_know_a_variable(name: str, versions: tuple[str, ...]):
    assert TABLE.env_versions(name) == versions


def test_an_unsupported_version_knows_nothing():
    assert not TABLE.knows_flag("max-num-seqs", "0.27.1")
    assert not TABLE.knows_env("VLLM_USE_RUST_FRONTEND", "0.27.1")
    assert not TABLE.knows_env("NCCL_MNNVL_ENABLE", "0.27.1")


def test_only_names_of_the_engine_are_certainly_mistakes():
    assert TABLE.owns_env("VLLM_TYPO")
    assert TABLE.owns_env("AITER_SITUV2_A8W4")
    assert not TABLE.owns_env("OMP_PROC_BIND")


def test_defaults_follow_the_version():
    assert TABLE.default_of("gpu-memory-utilization", "0.30.0") == 0.92
    assert TABLE.default_of("dcp-comm-backend", "0.28.0") == "ag_rs"
    assert TABLE.default_of("dcp-comm-backend", "0.30.0") is None
    assert TABLE.default_of("prefix-cache-retention-interval", "0.33.0") == 0
    with pytest.raises(KeyError, match=r"vLLM 0\.30\.0 has no flag --tool-strict-level"):
        TABLE.default_of("tool-strict-level", "0.30.0")


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("max-num-seq", "max-num-seqs"),
        ("--gpu_memory_utilisation", "gpu-memory-utilization"),
        ("VLLM_USE_RUST_FRONT_END", "VLLM_USE_RUST_FRONTEND"),
        ("NCCL_MNNVL_ENABLED", "NCCL_MNNVL_ENABLE"),
        ("zzz", None),
    ],
)
def test_a_misspelt_name_gets_a_suggestion(wrong: str, meant: str | None):
    assert TABLE.suggest(wrong) == meant


def test_a_suggestion_exists_in_the_version_asked_for():
    assert TABLE.suggest("reasoning-effort-maps", "0.33.0") == "reasoning-effort-map"
    assert TABLE.suggest("reasoning-effort-maps", "0.30.0") is None


@pytest.mark.parametrize("name", NAMES)
def test_the_pinned_version_knows_everything_that_a_shipped_profile_states(name: str):
    profile = Catalog.load().get(name, "1")
    version = profile.engine.version
    unknown = [f for _, args in argument_sections(profile) for f in args if not TABLE.knows_flag(f, version)]
    unknown += [v for _, env in environment_sections(profile) for v in env if not TABLE.knows_env(v, version)]
    assert unknown == []


@pytest.mark.parametrize(
    "flag",
    [
        "host", "port", "served-model-name", "revision", "nnodes", "node-rank", "master-addr", "master-port",
        "headless", "shutdown-timeout", "speculative-config", "kv-transfer-config", "kv-events-config",
        "language-model-only", "decode-context-parallel-size", "dcp-comm-backend", "attention-backend",
    ],
)  # fmt: skip
def test_every_supported_version_knows_what_the_operator_renders(flag: str):
    assert TABLE.flag_versions(flag) == TABLE.versions


@pytest.mark.parametrize("name", ["VLLM_ENGINE_READY_TIMEOUT_S", "VLLM_NIXL_SIDE_CHANNEL_HOST", "HF_HUB_OFFLINE"])
def test_every_supported_version_knows_the_variables_that_the_operator_renders(name: str):
    assert TABLE.env_versions(name) == TABLE.versions

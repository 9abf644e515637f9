from __future__ import annotations

from typing import Any

import pytest
from tests.factories import b300, deployment, engine_of, mi350x, parsed, planner

from kimi_k3_operator.api.refusal import Refusal
from kimi_k3_operator.profiles.engine import EngineConfig, flag_tokens
from kimi_k3_operator.profiles.flags import FlagTable
from kimi_k3_operator.profiles.overrides import RULES, canonical
from kimi_k3_operator.profiles.reserved import RESERVED_ARGS, RESERVED_ENV
from kimi_k3_operator.profiles.resolve import resolve

NEWEST = {"reference": "registry.example/vllm:new", "engineVersion": "0.33.0"}


def resolved(pool: dict[str, Any]) -> EngineConfig | tuple[Refusal, ...]:
    spec = parsed(deployment(pool)).spec
    profile = planner().catalog.newest_stable(pool["profile"]["name"])
    return resolve(spec, spec.pools[0], profile, planner().flags)


def refused(pool: dict[str, Any]) -> list[tuple[str, str]]:
    """(id, what to do) of each refusal."""
    found = resolved(pool)
    assert not isinstance(found, EngineConfig)
    return [(refusal.id, refusal.fix) for refusal in found]


def args(**overrides: Any) -> EngineConfig:
    return engine_of(deployment(b300(overrides=overrides)))


def test_a_negation_is_the_flag_turned_off_and_is_rendered_once():
    engine = args(args={"no-enable-prefix-caching": ""}, unsetArgs=["prefix-match-unit"])
    assert engine.args["enable-prefix-caching"] is False
    tokens = flag_tokens(engine.args)
    assert [token for token in tokens if token.endswith("enable-prefix-caching")] == ["--no-enable-prefix-caching"]


@pytest.mark.parametrize(
    ("name", "flag", "off"),
    [
        ("no-enable-prefix-caching", "enable-prefix-caching", True),
        ("disable-prefix-caching", "enable-prefix-caching", True),
        ("enable-hybrid-kv-cache-manager", "disable-hybrid-kv-cache-manager", True),
        ("disable-custom-all-reduce", "disable-custom-all-reduce", False),
        ("disable-log-stats", "disable-log-stats", False),
        ("max-num-seqs", "max-num-seqs", False),
    ],
)
def test_a_spelling_names_one_flag(name: str, flag: str, off: bool):
    assert canonical(name, FlagTable.load()) == (flag, off)


def test_the_newer_spelling_of_a_pair_replaces_the_older_one():
    overrides = {"args": {"disable-prefix-caching": ""}, "unsetArgs": ["prefix-match-unit"]}
    engine = engine_of(deployment(b300(image=NEWEST, overrides=overrides)))
    assert engine.args["enable-prefix-caching"] is False
    assert "disable-prefix-caching" not in engine.args


def test_a_negation_can_be_unset():
    assert "enable-flashinfer-autotune" not in args(unsetArgs=["no-enable-flashinfer-autotune"]).args


@pytest.mark.parametrize(
    ("overrides", "identity", "fix"),
    [
        ({"args": {"no-x": "", "x": ""}}, "override-twice", "keep x with true or false"),
        ({"args": {"no-async-scheduling": "false"}}, "override-negation", "set async-scheduling to true instead"),
        ({"args": {"no-async-scheduling": "9"}}, "override-negation", "set async-scheduling to a value instead"),
        ({"args": {"enable-expert-parallel": "yes"}}, "override-switch", ""),
        ({"args": {"no-seed": ""}}, "override-switch", "put seed into unsetArgs"),
        ({"args": {"seed": "false"}}, "override-switch", "put seed into unsetArgs"),
        ({"args": {"cp-kv-cache-interleave-size": "1k"}}, "override-number", ""),
        ({"args": {"gpu-memory-utilization": "0"}}, "override-number", ""),
        ({"args": {"attention-config": "FLASHINFER"}}, "override-json", ""),
        ({"args": {"attention-config": "[]"}}, "override-json", ""),
        ({"args": {"max-num-seqs": "8"}, "unsetArgs": ["max-num-seqs"]}, "override-and-unset", "keep one"),
        ({"env": {"OMP_NUM_THREADS": "8"}, "unsetEnv": ["OMP_NUM_THREADS"]}, "override-and-unset", "keep one"),
        ({"unsetArgs": ["max-num-seq"]}, "unset-nothing", "did you mean max-num-seqs?"),
        ({"unsetArgs": ["seed"]}, "unset-nothing", "remove it"),
        ({"unsetEnv": ["VLLM_NO_USAGE_STAT"]}, "unset-nothing", "did you mean VLLM_NO_USAGE_STATS?"),
    ],
)
def test_an_override_that_means_nothing_is_refused(overrides: dict[str, Any], identity: str, fix: str):
    assert identity in RULES
    assert (identity, fix) in refused(b300(overrides=overrides))


@pytest.mark.parametrize(
    "overrides",
    [
        {"args": {"no-async-scheduling": "true"}},
        {"args": {"enable-expert-parallel": "false"}},
        {"args": {"disable-log-stats": ""}},
        {"args": {"attention-config": '{"mla_prefill_backend":"FLASHINFER"}'}},
        {"args": {"gpu-memory-utilization": "0.85"}},
        {"unsetEnv": ["VLLM_NO_USAGE_STATS"]},
    ],
)
def test_what_lies_just_beside_is_taken(overrides: dict[str, Any]):
    assert isinstance(resolved(b300(overrides=overrides)), EngineConfig)


@pytest.mark.parametrize("name", RESERVED_ARGS)
@pytest.mark.parametrize("kind", ["args", "unsetArgs"])
def test_no_reserved_flag_gets_through(name: str, kind: str):
    overrides = {kind: {name: "1"} if kind == "args" else [name]}
    assert ("reserved-override", RESERVED_ARGS[name]) in refused(b300(overrides=overrides))


@pytest.mark.parametrize("name", RESERVED_ENV)
def test_no_reserved_variable_gets_through(name: str):
    assert ("reserved-override", RESERVED_ENV[name]) in refused(b300(overrides={"env": {name: "1"}}))


def test_a_reserved_flag_is_reserved_in_its_newer_spelling():
    pool = b300(image=NEWEST, overrides={"args": {"disable-auto-tool-choice": ""}})
    assert [identity for identity, _ in refused(pool)] == ["reserved-override"]


def test_a_variable_that_only_older_engines_read_is_refused():
    pool = b300(overrides={"env": {"AITER_SITUV2_A8W4": "1"}})
    assert [identity for identity, _ in refused(pool)] == ["unknown-engine-option"]


def test_an_amd_pool_is_told_once_which_name_its_engine_reads():
    assert [identity for identity, _ in refused(mi350x(image=NEWEST))] == ["situ-variable"]


def test_the_name_that_the_engine_reads_makes_the_newer_image_work():
    overrides = {
        "env": {"VLLM_ROCM_USE_AITER_MOE_SITUV2": "a8w4"},
        "unsetEnv": ["VLLM_ROCM_USE_AITER_MOE_SITUV2_A8W4"],
    }
    engine = engine_of(deployment(mi350x(image=NEWEST, overrides=overrides)))
    assert (engine.engine_version, engine.warnings) == ("0.33.0", ())


def test_a_refusal_names_the_override_or_the_pool_whose_profile_set_it():
    def fields(pool: dict[str, Any]) -> list[str]:
        found = resolved(pool)
        assert not isinstance(found, EngineConfig)
        return [refusal.field for refusal in found]

    assert fields(b300(overrides={"args": {"dtype": "float16"}})) == ["spec.pools[b300].overrides.args.dtype"]
    assert fields(b300(overrides={"args": {"max-model-len": "1000"}})) == ["spec.pools[b300]"]


def test_the_load_of_a_pool_reaches_its_policies():
    engine = engine_of(deployment(b300(load={"concurrency": 16, "contextTokens": 262144})))
    assert [warning.id for warning in engine.warnings] == ["kv-capacity"]

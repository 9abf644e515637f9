from __future__ import annotations

from typing import Any

import pytest
from tests.factories import CLAIM, HOST_PATH, HUB, b300, deployment, engine_of, gb300, parsed, planner

from kimi_k3_operator.api.refusal import Refusal
from kimi_k3_operator.api.v1alpha1 import Load
from kimi_k3_operator.profiles.engine import EngineConfig, flag_tokens, serve_command
from kimi_k3_operator.profiles.resolve import band_for, resolve
from kimi_k3_operator.profiles.startup import engine_ready_timeout, probe_failures, progress_deadline, startup_seconds

DRAFT = "Inferact/Kimi-K3-DSpark"
SHORT = {"concurrency": 8, "contextTokens": 16384}


def result(pool: dict[str, Any], **spec: Any) -> EngineConfig | tuple[Refusal, ...]:
    found = parsed(deployment(pool, **spec))
    profile = planner().catalog.newest_stable(pool["profile"]["name"])
    return resolve(found.spec, found.spec.pools[0], profile, planner().flags)


def refusals(pool: dict[str, Any], **spec: Any) -> list[str]:
    found = result(pool, **spec)
    assert not isinstance(found, EngineConfig)
    return [refusal.id for refusal in found]


def speculation(**more: Any):
    pool = b300(load=more.pop("load", SHORT), speculation=more.pop("speculation", None))
    return engine_of(deployment(pool, **more)).speculation


def test_the_layers_are_profile_band_override_operator():
    engine = engine_of(deployment(b300(overrides={"args": {"max-num-seqs": "20", "enforce-eager": ""}})))
    assert engine.args["trust-remote-code"] is True
    assert (engine.args["max-num-seqs"], engine.origins["max-num-seqs"]) == ("20", "override")
    assert engine.args["enforce-eager"] is True
    assert engine.origins["trust-remote-code"] == "profile b300/1"
    assert engine.origins["port"] == "operator"
    plain = engine_of(deployment())
    assert plain.origins["max-num-seqs"] == "band up to 8"


def test_the_load_chooses_the_band():
    profile = engine_of(deployment()).profile
    bands = profile.bands
    assert band_for(profile, 1) == bands[0]
    assert band_for(profile, bands[0].max_concurrency) == bands[0]
    assert band_for(profile, bands[0].max_concurrency + 1) == bands[1]
    assert band_for(profile, 1024) == bands[-1]


def test_an_override_can_be_a_flag_a_negation_or_a_value():
    overrides = {"args": {"enforce-eager": "true", "enable-expert-parallel": "false", "seed": "7"}}
    args = engine_of(deployment(b300(overrides=overrides))).args
    assert (args["enforce-eager"], args["enable-expert-parallel"], args["seed"]) == (True, False, "7")


def test_an_unset_flag_or_variable_is_left_out():
    overrides = {"unsetArgs": ["kv-cache-dtype"], "unsetEnv": ["VLLM_DO_NOT_TRACK"]}
    engine = engine_of(deployment(b300(overrides=overrides)))
    assert "kv-cache-dtype" not in engine.args
    assert "VLLM_DO_NOT_TRACK" not in engine.env
    assert not {"kv-cache-dtype", "VLLM_DO_NOT_TRACK"} & set(engine.origins)


@pytest.mark.parametrize(
    "overrides",
    [
        {"args": {"tensor-parallel-size": "5"}},
        {"args": {"no-trust-remote-code": ""}},
        {"unsetArgs": ["reasoning-parser"]},
        {"env": {"PYTHONHASHSEED": "1"}},
        {"unsetEnv": ["HF_HUB_OFFLINE"]},
    ],
)
def test_what_the_operator_must_control_cannot_be_overridden(overrides: dict[str, Any]):
    assert "reserved-override" in refusals(b300(overrides=overrides))


def test_unknown_names_are_refused_with_a_suggestion():
    found = result(b300(overrides={"args": {"max-num-seq": "1"}, "env": {"VLLM_LOGGING_LEVL": "x", "MINE": "y"}}))
    assert not isinstance(found, EngineConfig)
    assert [r.id for r in found] == ["unknown-engine-option", "unknown-engine-option"]
    assert {r.fix for r in found} == {"did you mean max-num-seqs?", "did you mean VLLM_LOGGING_LEVEL?"}


def test_an_image_must_hold_a_supported_engine():
    image = {"reference": "registry.example/vllm:old", "engineVersion": "0.19.0"}
    assert refusals(b300(image=image)) == ["engine-version"]


def test_an_image_is_checked_against_its_own_version():
    image = {"reference": "registry.example/vllm:v2", "engineVersion": "0.30.0"}
    engine = engine_of(deployment(b300(image=image)))
    assert (engine.image, engine.engine_version) == ("registry.example/vllm:v2", "0.30.0")


@pytest.mark.parametrize(
    ("weights", "claim", "path", "downloaded"),
    [
        (CLAIM, "kimi-k3", "", False),
        (HOST_PATH, None, "/mnt/nvme/kimi-k3", False),
        (HUB, "kimi-k3", "moonshotai--Kimi-K3@refs--pr--1", True),
    ],
)
def test_the_checkpoint_is_where_the_weights_say(weights: Any, claim: str | None, path: str, downloaded: bool):
    found = engine_of(deployment(weights=weights, model={"revision": "refs/pr/1"})).checkpoint
    assert (found.folder.claim, found.folder.path) == (claim, path)
    assert (found.download is not None) is downloaded


def test_a_pool_overrides_the_weights():
    engine = engine_of(deployment(b300(weights=CLAIM), weights=HOST_PATH))
    assert engine.checkpoint.folder.claim == "kimi-k3"


def test_the_startup_budget_is_what_the_slower_source_needs():
    startup = engine_of(deployment(gb300())).profile.startup
    shared = startup_seconds(startup, shared_claim=True)
    assert shared == -(-startup.weight_bytes * 2 // 300_000_000) + startup.fixed_seconds
    assert startup_seconds(startup, shared_claim=False) == startup.minimum_seconds
    assert engine_of(deployment(gb300(), weights=CLAIM)).startup_seconds == shared
    assert engine_of(deployment(gb300(startupBudget="90m"))).startup_seconds == 5400


def test_every_wait_follows_from_the_budget():
    assert (probe_failures(3600), probe_failures(3601)) == (120, 121)
    assert (engine_ready_timeout(3600), engine_ready_timeout(700)) == (3300, 600)
    assert progress_deadline(3600) == 4200


def test_auto_speculates_only_where_it_gains_and_a_draft_is_there():
    assert speculation(weights=HUB).tokens == 7
    assert speculation(weights=HUB).draft == DRAFT
    assert speculation(weights=HOST_PATH).reason == "off: no draft weights are named in speculation.draft"
    busy = speculation(weights=HUB, load=Load(concurrency=64).wire())
    assert (busy.tokens, busy.reason) == (0, "off: no gain at 64 requests of 131072 tokens")


def test_speculation_can_be_off_or_asked_for():
    assert speculation(weights=HUB, speculation={"mode": "Off"}).reason == "off: asked for"
    asked = speculation(load={}, speculation={"mode": "DSpark", "draft": {"id": DRAFT, "path": "/opt/d"}, "tokens": 3})
    assert (asked.tokens, asked.path, asked.reason) == (3, "/opt/d", "3 tokens: asked for")
    config = engine_of(deployment(b300(speculation={"mode": "DSpark", "draft": {"id": DRAFT, "path": "/opt/d"}}))).args[
        "speculative-config"
    ]
    assert isinstance(config, dict)
    assert (config["model"], config["method"], config["num_speculative_tokens"]) == ("/opt/d", "dspark", 7)


def test_dspark_needs_a_draft():
    assert refusals(b300(speculation={"mode": "DSpark"})) == ["draft-missing"]


def test_no_draft_gives_more_tokens_than_it_was_trained_for():
    draft = {"id": "Inferact/Kimi-K3-DSpark-Block5", "path": "/d"}
    assert refusals(b300(speculation={"mode": "DSpark", "draft": draft, "tokens": 6})) == ["draft-tokens"]


def test_a_flag_is_rendered_by_its_type_in_alphabetical_order():
    assert flag_tokens({"b": True, "a": False, "d": {"y": 1, "x": True}, "c": 2}) == [
        "--no-a",
        "--b",
        "--c",
        "2",
        "--d",
        '{"x":true,"y":1}',
    ]


def test_the_command_is_explicit_and_begins_with_the_weights():
    command, args = serve_command(engine_of(deployment()))
    assert command == ["vllm", "serve"]
    assert args[0] == "/weights"


def test_an_integer_flag_has_a_default():
    engine = engine_of(deployment(b300(overrides={"args": {"seed": "seven"}})))
    assert engine.int_arg("seed", 4) == 4
    assert engine.int_arg("absent") == 0
    assert engine.int_arg("tensor-parallel-size") == 8

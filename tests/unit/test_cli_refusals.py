"""What a user gets wrong in a resource: exit code 3 and one sentence that names the field."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kimi_k3_operator.cli.main import app

RESOURCE: Mapping[str, Any] = {
    "apiVersion": "kimik3.dev/v1alpha1",
    "kind": "KimiK3Deployment",
    "metadata": {"name": "k3"},
    "spec": {
        "weights": {"hostPath": {"path": "/mnt/kimi-k3"}},
        "pools": [{"name": "b300", "profile": {"name": "b300"}, "replicas": 2}],
    },
}


def resource(*, name: str | None = "k3", pool: Mapping[str, Any] | None = None, **spec: Any) -> str:
    """A resource with one B300 pool; a None takes a field away."""
    body = copy.deepcopy(dict(RESOURCE))
    body["metadata"] = {"name": name} if name is not None else {}
    body["spec"] |= spec
    if pool is not None:
        body["spec"]["pools"][0] |= pool
    body["spec"]["pools"] = [{k: v for k, v in p.items() if v is not None} for p in body["spec"]["pools"]]
    return json.dumps({**body, "spec": {key: value for key, value in body["spec"].items() if value is not None}})


def refused(text: str) -> list[str]:
    """The lines on standard error of a refused render; standard output stays empty."""
    result = CliRunner().invoke(app, ["render", "-f", "-"], input=text)
    assert (result.exit_code, result.stdout) == (3, ""), result.stderr
    return result.stderr.splitlines()


BAD_POOLS: list[tuple[str, dict[str, Any], str]] = [
    (
        "an unknown field",
        {"replica": 3},
        "unknown-field: spec.pools[b300].replica: unknown field; did you mean replicas?",
    ),
    (
        "an unknown profile",
        {"profile": {"name": "b30"}},
        "unknown-profile: spec.pools[b300].profile: there is no profile b30 (known: b300, gb300, mi350x, mi355x); "
        "did you mean b300",
    ),
    (
        "an unknown version of a profile",
        {"profile": {"name": "b300", "version": "7"}},
        "unknown-profile: spec.pools[b300].profile: profile b300 has no version 7 (known: 1)",
    ),
    (
        "a number where text is meant",
        {"profile": {"name": "b300", "version": 1}},
        "malformed: spec.pools[b300].profile.version: must be text (in quotes), not 1",
    ),
    (
        "replicas and autoscaling",
        {"autoscaling": {"minReplicas": 1, "maxReplicas": 2}},
        "replica-source: spec.pools[b300]: set exactly one of replicas, autoscaling and disaggregation",
    ),
    (
        "neither replicas nor autoscaling",
        {"replicas": None},
        "replica-source: spec.pools[b300]: set exactly one of replicas, autoscaling and disaggregation",
    ),
    (
        "a pool named prefill",
        {"name": "prefill"},
        "pool-name-taken: spec.pools[prefill].name: name must not be prefill or decode: its children would collide "
        "with another deployment's",
    ),
    (
        "a pool name with capitals",
        {"name": "B300"},
        "malformed: spec.pools[B300].name: 'B300' does not have the form ^[a-z][a-z0-9]{0,14}$",
    ),
    (
        "negative replicas",
        {"replicas": -1},
        "out-of-range: spec.pools[b300].replicas: must be at least 0, not -1",
    ),
    (
        "a billion replicas",
        {"replicas": 10**9},
        "out-of-range: spec.pools[b300].replicas: must be at most 1000, not 1000000000",
    ),
    (
        "replicas in words",
        {"replicas": "two"},
        "malformed: spec.pools[b300].replicas: must be a whole number, not 'two'",
    ),
    (
        "replicas in quotes",
        {"replicas": "2"},
        "malformed: spec.pools[b300].replicas: must be a whole number, not '2'",
    ),
    (
        "replicas that are true",
        {"replicas": True},
        "malformed: spec.pools[b300].replicas: must be a whole number, not True",
    ),
    (
        "one and a half replicas",
        {"replicas": 1.5},
        "malformed: spec.pools[b300].replicas: must be a whole number, not 1.5",
    ),
    (
        "a context longer than the model's",
        {"load": {"contextTokens": 10**8}},
        "out-of-range: spec.pools[b300].load.contextTokens: must be at most 1048576, not 100000000",
    ),
    (
        "a drain of a second",
        {"drainSeconds": 1},
        "out-of-range: spec.pools[b300].drainSeconds: must be at least 60, not 1",
    ),
    (
        "a mode in other letters",
        {"speculation": {"mode": "dspark"}},
        "malformed: spec.pools[b300].speculation.mode: must be 'Auto', 'Off' or 'DSpark', not 'dspark'",
    ),
    (
        "DSpark without a draft",
        {"speculation": {"mode": "DSpark"}},
        "draft-missing: spec.pools[b300].speculation: DSpark needs draft.subPath or draft.path for these weights",
    ),
    (
        "an image of a vLLM that is not supported",
        {"image": {"reference": "example.com/vllm:v9", "engineVersion": "0.99.0"}},
        "engine-version: spec.pools[b300].image: vLLM 0.99.0 is not supported (supported: 0.28.0 to 0.33.0)",
    ),
    (
        "an image without its vLLM version",
        {"image": {"reference": "example.com/vllm:v9"}},
        "missing-field: spec.pools[b300].image.engineVersion: must be set",
    ),
    (
        "a reserved argument",
        {"overrides": {"args": {"port": "9000"}}},
        "reserved-override: spec.pools[b300].overrides.args: port cannot be overridden; probes and Services know "
        "port 8000",
    ),
    (
        "a reserved variable",
        {"overrides": {"env": {"HF_TOKEN": "hf"}}},
        "reserved-override: spec.pools[b300].overrides.env: HF_TOKEN cannot be overridden; set "
        "weights.huggingFace.tokenSecretRef",
    ),
    (
        "an unknown flag",
        {"overrides": {"args": {"max-num-seq": "4"}}},
        "unknown-engine-option: spec.pools[b300].overrides.args: vLLM 0.30.0 does not know max-num-seq; did you mean "
        "max-num-seqs?",
    ),
    (
        "an unknown variable",
        {"overrides": {"env": {"VLLM_LOGING_LEVEL": "DEBUG"}}},
        "unknown-engine-option: spec.pools[b300].overrides.env: vLLM 0.30.0 does not know VLLM_LOGING_LEVEL; did you "
        "mean VLLM_LOGGING_LEVEL?",
    ),
    (
        "a flag with its dashes",
        {"overrides": {"args": {"--seed": "4"}}},
        "malformed: spec.pools[b300].overrides.args.--seed: '--seed' does not have the form ^[a-z][a-z0-9-]*$",
    ),
    (
        "a negative count of sequences",
        {"overrides": {"args": {"max-num-seqs": "-5"}}},
        "override-number: spec.pools[b300].overrides.args.max-num-seqs: must be a whole number above 0, not '-5'",
    ),
    (
        "a length in words",
        {"overrides": {"args": {"max-model-len": "long"}}},
        "override-number: spec.pools[b300].overrides.args.max-model-len: must be a whole number above 0, not 'long'",
    ),
    (
        "more memory than there is",
        {"overrides": {"args": {"gpu-memory-utilization": "1.5"}}},
        "override-number: spec.pools[b300].overrides.args.gpu-memory-utilization: must be a number above 0 and at most "
        "1, not '1.5'",
    ),
    (
        "no time to start",
        {"startupBudget": "0s"},
        "startup-budget: spec.pools[b300].startupBudget: 0 s is not above the 600 s that an engine waits for its own "
        "workers",
    ),
    (
        "a batch that splits blocks",
        {"overrides": {"args": {"max-num-seqs": "100000"}}},
        "batched-tokens: spec.pools[b300]: max-num-batched-tokens 16384 is below 101536 (a KV block of 1536 tokens and "
        "1 for each sequence), which splits blocks and yields wrong numbers; raise max-num-batched-tokens or lower "
        "max-num-seqs (https://github.com/local-inference-lab/blackwell-llm-docker/issues/26)",
    ),
]


@pytest.mark.parametrize(("pool", "line"), [case[1:] for case in BAD_POOLS], ids=[case[0] for case in BAD_POOLS])
def test_a_bad_pool_is_refused_in_one_sentence(pool: dict[str, Any], line: str) -> None:
    assert refused(resource(pool=pool)) == [line]


BAD_SPECS: list[tuple[str, dict[str, Any], str]] = [
    (
        "two weight sources",
        {"weights": {"hostPath": {"path": "/w"}, "persistentVolumeClaim": {"claimName": "w"}}},
        "one-weight-source: spec.weights: set exactly one of persistentVolumeClaim, hostPath and huggingFace",
    ),
    (
        "no weights",
        {"weights": None},
        "weights-source: spec.weights: weights is missing: set spec.weights, or weights in every pool",
    ),
    (
        "a placeholder for the folder",
        {"weights": {"hostPath": {"path": "<MODEL_DIR>"}}},
        "placeholder: spec.weights.hostPath.path: still holds placeholder text '<MODEL_DIR>'",
    ),
    (
        "a placeholder inside the folder",
        {"weights": {"hostPath": {"path": "/mnt/<MODEL_DIR>"}}},
        "placeholder: spec.weights.hostPath.path: path still holds placeholder text: put the real folder",
    ),
    (
        "hub weights without a cache",
        {"weights": {"huggingFace": {}}},
        "missing-field: spec.weights.huggingFace.cache: must be set",
    ),
    (
        "two pools of one name",
        {"pools": [{"name": "a", "profile": {"name": "b300"}, "replicas": 1}] * 2},
        "name-taken-twice: spec.pools: the name a appears twice",
    ),
    ("no pools", {"pools": []}, "out-of-range: spec.pools: must have at least 1 item, not 0"),
    ("pools that are no list", {"pools": {}}, "malformed: spec.pools: must be a list, not {}"),
    (
        "an entrance, which this release does not make",
        {"routing": {"pooling": "PerPool"}},
        "not-in-this-release: spec.routing.pooling: this release routes over all pools at once; use Unified",
    ),
]


@pytest.mark.parametrize(("spec", "line"), [case[1:] for case in BAD_SPECS], ids=[case[0] for case in BAD_SPECS])
def test_a_bad_spec_is_refused_in_one_sentence(spec: dict[str, Any], line: str) -> None:
    if isinstance(spec.get("pools"), dict):
        text = json.dumps({**RESOURCE, "spec": {**RESOURCE["spec"], **spec}})
    else:
        text = resource(**spec)
    assert refused(text) == [line]


@pytest.mark.parametrize(
    ("name", "shown"), [("K3_x", "'K3_x'"), ("k" * 41, f"'{'k' * 41}'"), (None, "must be set; it")]
)
def test_a_bad_name_is_refused(name: str | None, shown: str) -> None:
    assert refused(resource(name=name)) == [
        f"deployment-name: metadata.name: {shown} must begin with a letter, hold lower-case letters, digits and "
        "dashes, end with a letter or digit, and have at most 40 characters"
    ]


def test_every_refusal_of_the_form_is_said_at_once() -> None:
    lines = refused(resource(name="K3", pool={"replicas": -1, "profle": {}}))
    assert [line.split(":")[0] for line in lines] == ["deployment-name", "out-of-range", "unknown-field"]


def test_what_this_release_does_not_serve_is_said_together_with_the_engines_refusals() -> None:
    lines = refused(resource(pool={"overrides": {"args": {"port": "1"}}}, routing={"pooling": "PerPool"}))
    assert [line.split(":")[0] for line in lines] == ["not-in-this-release", "reserved-override"]


def test_one_refused_resource_among_several_keeps_all_manifests_back(tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    file.write_text(f"{resource(name='good')}\n---\n{resource(name='bad', pool={'replicas': -1})}\n")
    result = CliRunner().invoke(app, ["render", "-f", str(file)])
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr == "out-of-range: default/bad: spec.pools[b300].replicas: must be at least 0, not -1\n"


def test_explain_shows_the_accepted_resources_beside_a_refused_one() -> None:
    text = f"{resource(name='good')}\n---\n{resource(name='bad', pool={'replicas': -1})}\n"
    result = CliRunner().invoke(app, ["explain", "-f", "-"], input=text)
    assert result.exit_code == 3
    assert result.stdout.startswith("KimiK3Deployment default/good\n")
    assert "default/bad" not in result.stdout


def test_a_warning_refuses_nothing() -> None:
    draft = {"id": "RedHatAI/Kimi-K3-speculator.dspark", "path": "/drafts/redhat"}
    result = CliRunner().invoke(
        app, ["explain", "-f", "-"], input=resource(pool={"speculation": {"mode": "DSpark", "draft": draft}})
    )
    assert result.exit_code == 0
    assert result.stderr.startswith("warning: unverified-draft: pool b300: ")
    assert "warning: unverified-draft: " in result.stdout

"""What `kimi-k3 render` prints."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from kimi_k3_operator.api.crd import crds
from kimi_k3_operator.cli.main import app
from kimi_k3_operator.cli.text import yaml_document
from kimi_k3_operator.plan.actions import Apply
from kimi_k3_operator.plan.engine import Planner
from kimi_k3_operator.plan.snapshot import Snapshot
from kimi_k3_operator.profiles.catalog import Catalog
from kimi_k3_operator.profiles.flags import FlagTable

SAMPLES = Path(__file__).parents[2] / "samples"
EVERY = sorted(path.name for path in SAMPLES.glob("*.yaml"))
OPEN = "warning: the NVLink domains of default/k3 are left open; name a cluster with --cluster\n"


def render(*arguments: str, given: str = "") -> tuple[str, str]:
    """(standard output, standard error) of a render that succeeds."""
    result = CliRunner().invoke(app, ["render", *arguments], input=given)
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr


def objects(text: str) -> list[dict[str, Any]]:
    return list(yaml.load_all(text, Loader=yaml.CSafeLoader))


def sample(name: str) -> str:
    return str(SAMPLES / name)


def changed(name: str, spec: Mapping[str, Any]) -> str:
    """A sample with some fields of its spec replaced."""
    body = yaml.safe_load((SAMPLES / name).read_text())
    return json.dumps({**body, "spec": {**body["spec"], **spec}})


def by_identity(found: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(o["kind"], o["metadata"]["name"]): o for o in found}


def test_two_processes_with_different_hash_seeds_print_the_same_bytes() -> None:
    command = [sys.executable, "-c", "from kimi_k3_operator.cli.main import app; app()", "render", "-f"]
    printed = [
        subprocess.run(
            [*command, sample("heterogeneous.yaml")],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(SAMPLES.parent / "operator")},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert printed[0] == printed[1]
    assert len(objects(printed[0].decode())) == 20


def test_shuffled_pools_give_the_same_objects() -> None:
    pools = yaml.safe_load(Path(sample("heterogeneous.yaml")).read_text())["spec"]["pools"]
    shuffled = changed("heterogeneous.yaml", {"pools": [pools[2], pools[0], pools[1]]})
    first, _ = render("-f", sample("heterogeneous.yaml"))
    second, _ = render("-f", "-", given=shuffled)
    assert by_identity(objects(first)) == by_identity(objects(second))
    assert first != second


def test_all_children_come_in_the_order_in_which_the_operator_makes_them() -> None:
    text, _ = render("-f", sample("gb300-rack.yaml"))
    assert [o["kind"] for o in objects(text)] == [
        "ServiceAccount",
        "ComputeDomain",
        "ControllerRevision",
        "KimiK3Pool",
        "Service",
        "PodDisruptionBudget",
        *["LeaderWorkerSet"] * 8,
    ]


@pytest.mark.parametrize("name", EVERY)
def test_nothing_depends_on_a_uid(name: str) -> None:
    written = yaml.safe_load(Path(sample(name)).read_text())
    stored = {**written, "metadata": {**written["metadata"], "uid": "7f3c", "generation": 4}, "status": {"pools": []}}
    plain, _ = render("-f", sample(name))
    assert render("-f", "-", given=json.dumps(stored))[0] == plain
    for found in objects(plain):
        assert "ownerReferences" not in found["metadata"]
        assert "kimik3.dev/applied-hash" not in found["metadata"].get("annotations", {})


@pytest.mark.parametrize("name", EVERY)
def test_yaml_reads_back_as_what_json_says(name: str) -> None:
    text, _ = render("-f", sample(name))
    as_json, _ = render("-f", sample(name), "-o", "json")
    assert objects(text) == json.loads(as_json)["items"]
    assert "&id" not in text
    assert not re.search(r': ".*\\n', text), "several lines are a literal block"


@pytest.mark.parametrize("name", EVERY)
def test_keys_are_where_a_reader_looks_for_them(name: str) -> None:
    for found in objects(render("-f", sample(name))[0]):
        assert list(found)[:3] == ["apiVersion", "kind", "metadata"]
        assert list(found["metadata"])[:2] == ["name", "namespace"]


def test_scripts_are_literal_blocks() -> None:
    text, _ = render("-f", sample("b300-pvc.yaml"))
    assert "            - |\n" in text
    assert '"""Runs in an init container' in text


def test_the_domain_of_a_gb300_replica_is_open_without_a_cluster() -> None:
    text, notes = render("-f", sample("gb300-rack.yaml"))
    assert notes == OPEN
    for found in objects(text):
        assert "kimik3.dev/nvlink-domain" not in found["metadata"].get("annotations", {})
    assert render("-f", sample("b300-pvc.yaml"))[1] == ""


def test_the_namespace_is_the_written_one_else_the_given_one_else_default() -> None:
    written = Path(sample("b300-pvc.yaml")).read_text().replace("  name: k3\n", "  name: k3\n  namespace: own\n", 1)
    for arguments, given, expected in (
        (("-f", "-"), written, "own"),
        (("-f", "-", "-n", "own"), written, "own"),
        (("-f", sample("b300-pvc.yaml"), "-n", "serving"), "", "serving"),
        (("-f", sample("b300-pvc.yaml")), "", "default"),
    ):
        found = objects(render(*arguments, given=given)[0])
        assert {o["metadata"]["namespace"] for o in found} == {expected}


def test_a_paused_resource_is_rendered_with_a_note() -> None:
    text, notes = render("-f", "-", given=changed("b300-pvc.yaml", {"paused": True}))
    assert text == render("-f", sample("b300-pvc.yaml"))[0]
    assert notes == "note: default/k3 is paused: the operator makes nothing until spec.paused is false\n"


def test_an_autoscaled_pool_begins_with_its_least() -> None:
    found = by_identity(objects(render("-f", sample("autoscaling.yaml"))[0]))
    assert found["KimiK3Pool", "k3-mi350x"]["spec"]["replicas"] == 1


def test_profiles_of_a_platform_team_are_used(tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "1.yaml").write_text(
        "name: ours\nversion: '1'\nchannel: stable\nsummary: B300 with our image\nextends: b300/1\n"
        "engine: {image: {reference: 'example.com/vllm:v0.30.0'}}\n"
        "provenance: {engine.image: {source: our build of vLLM 0.30.0, kind: derived}}\n"
    )
    pools = [{"name": "b300", "profile": {"name": "ours"}, "replicas": 1}]
    text, _ = render("-f", "-", "--profiles", str(tmp_path), given=changed("b300-pvc.yaml", {"pools": pools}))
    deployment = by_identity(objects(text))["Deployment", "k3-b300-0"]
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == "example.com/vllm:v0.30.0"


@pytest.mark.parametrize("text", ["12345e6789", "1e3", "y", "N", "on", "0x1f", "0o17", "1_000", ".5", "", "true", "~"])
def test_text_that_some_reader_takes_for_something_else_is_quoted(text: str) -> None:
    assert yaml_document({"value": text}) == f'value: "{text}"\n'


def test_crd_prints_both_definitions() -> None:
    result = CliRunner().invoke(app, ["crd"])
    assert result.exit_code == 0
    assert objects(result.stdout) == list(crds())


def test_a_pass_leaves_no_domain_open_unless_it_is_told_to() -> None:
    planner = Planner(Catalog.load(), FlagTable.load())
    body = yaml.safe_load(Path(sample("gb300-rack.yaml")).read_text())
    snapshot = Snapshot(body=body, apis=frozenset({"LeaderWorkerSet", "ComputeDomain"}))
    groups = [
        [a for a in planner.plan(given).actions if isinstance(a, Apply) and a.manifest["kind"] == "LeaderWorkerSet"]
        for given in (snapshot, replace(snapshot, open_placement=True))
    ]
    assert [len(found) for found in groups] == [0, 8]
    assert planner.plan(replace(snapshot, open_placement=True)).promises == ()

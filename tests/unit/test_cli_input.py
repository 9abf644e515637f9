"""Input that cannot be read: exit code 2 and one sentence, never a traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kimi_k3_operator.cli.main import app

SAMPLE = Path(__file__).parents[2] / "samples" / "b300-pvc.yaml"


def run(*arguments: str, given: str | bytes = "") -> Result:
    return CliRunner().invoke(app, list(arguments), input=given)


def unreadable(*arguments: str, given: str | bytes = "") -> str:
    result = run(*arguments, given=given)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    return result.stderr


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    file = tmp_path / "k3.yaml"
    assert unreadable("render", "-f", str(file)) == f"error: {file}: no such file or directory\n"


def test_a_folder_instead_of_a_file(tmp_path: Path) -> None:
    assert unreadable("explain", "-f", str(tmp_path)) == f"error: {tmp_path}: is a directory\n"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("a: [1\nb: 2\n", "line 2, column 2: not readable as YAML: did not find expected ',' or ']'"),
        ("a: 1\nb: 2\na: 3\n", "line 3, column 1: not readable as YAML: the key a appears twice"),
        ("a:\n  8: x\n", "line 2, column 3: not readable as YAML: the key 8 is not text"),
        (b"\xff\xfe\x00", "not UTF-8 text (byte 0)"),
        ("", "there is no KimiK3Deployment in it (it is empty)"),
        ("hello", "document 1 is not a Kubernetes object (it has no kind)"),
        (
            "kind: ConfigMap\nmetadata: {name: x}\n---\nkind: Service\n",
            "there is no KimiK3Deployment in it (found: ConfigMap x, Service without a name)",
        ),
    ],
)
def test_text_that_holds_no_resource(given: str | bytes, sentence: str) -> None:
    assert unreadable("render", "-f", "-", given=given) == f"error: standard input: {sentence}\n"


def test_broken_yaml_of_any_depth_is_one_sentence() -> None:
    lines = unreadable("render", "-f", "-", given="[" * 5000).splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: standard input: ")


def test_missing_and_wrong_options_are_wrong_usage() -> None:
    assert "Missing option '-f'" in unreadable("render")
    assert "Missing option '--cluster'" in unreadable("plan", "-f", str(SAMPLE))
    assert "'table' is not one of 'yaml', 'json'" in unreadable("render", "-f", str(SAMPLE), "-o", "table")


def test_a_folder_of_profiles_that_is_not_there() -> None:
    sentence = unreadable("render", "-f", str(SAMPLE), "--profiles", "/nowhere")
    assert sentence == "error: /nowhere: no such directory of profiles\n"


def test_an_invalid_profile_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "1.yaml").write_text("name: mine\n")
    sentences = unreadable("profiles", "list", "--profiles", str(tmp_path)).splitlines()
    assert all(sentence.startswith("error: mine/1.yaml: field ") for sentence in sentences)
    assert sentences


def test_a_profile_that_does_not_exist() -> None:
    assert "did you mean gb300" in unreadable("profiles", "show", "gb30")
    assert unreadable("profiles", "show", "gb300/9") == "error: profile gb300 has no version 9 (known: 1)\n"


def test_one_standard_input_cannot_be_both() -> None:
    sentence = "error: -f and --cluster cannot both be standard input\n"
    assert unreadable("plan", "-f", "-", "--cluster", "-") == sentence


def test_a_cluster_without_nodes() -> None:
    assert unreadable("plan", "-f", str(SAMPLE), "--cluster", str(SAMPLE)).endswith(": there is no Node in it\n")


def test_a_cluster_with_a_malformed_object() -> None:
    pod = {"kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"resources": {"limits": []}}, "x"]}}
    sentence = unreadable("plan", "-f", str(SAMPLE), "--cluster", "-", given=json.dumps(pod))
    assert sentence == "error: standard input: Pod p is not well-formed\n"


def test_another_namespace_than_the_written_one_is_refused() -> None:
    text = SAMPLE.read_text().replace("  name: k3\n", "  name: k3\n  namespace: serving\n", 1)
    sentence = unreadable("render", "-f", "-", "-n", "other", given=text)
    assert sentence == "error: KimiK3Deployment k3 is in namespace serving, not in other as --namespace says\n"
    assert "cannot be the name of a namespace" in unreadable("render", "-f", str(SAMPLE), "-n", "A b")


def test_lists_and_documents_are_laid_flat_and_other_kinds_passed_over() -> None:
    import yaml

    first = yaml.safe_load(SAMPLE.read_text())
    second = {**first, "metadata": {"name": "other"}}
    listed = {"apiVersion": "v1", "kind": "List", "items": [first, {"kind": "Secret", "metadata": {"name": "hub"}}]}
    result = run("render", "-f", "-", given=f"{json.dumps(listed)}\n---\n{json.dumps(second)}\n---\n")
    assert result.exit_code == 0
    assert result.stderr == "note: passed over Secret hub\n"
    accounts = [o["metadata"]["name"] for o in yaml.safe_load_all(result.stdout) if o["kind"] == "ServiceAccount"]
    assert accounts == ["k3-engine", "other-engine"]

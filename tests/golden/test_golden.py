"""What each sample becomes, byte for byte, as files that are reviewed like code.

`KIMI_K3_UPDATE_GOLDEN=1 pytest tests/golden` (`make golden`) writes them anew.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kimi_k3_operator.cli.main import app

HERE = Path(__file__).parent
SAMPLES = sorted((HERE.parents[1] / "samples").glob("*.yaml"))
UPDATE = os.environ.get("KIMI_K3_UPDATE_GOLDEN") == "1"
KINDS = {"render": ".yaml", "explain": ".txt"}


def printed(command: str, sample: Path) -> str:
    result = CliRunner().invoke(app, [command, "-f", str(sample)])
    assert result.exit_code == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("command", KINDS)
@pytest.mark.parametrize("sample", SAMPLES, ids=[sample.stem for sample in SAMPLES])
def test_a_sample_becomes_what_its_golden_file_says(command: str, sample: Path) -> None:
    golden = HERE / command / f"{sample.stem}{KINDS[command]}"
    text = printed(command, sample)
    if UPDATE:
        golden.write_text(text, encoding="utf-8")
    assert golden.is_file(), f"{golden.name} is missing: run make golden"
    assert text == golden.read_text(encoding="utf-8"), "the output has changed: review it, then run make golden"


@pytest.mark.parametrize("command", KINDS)
def test_no_golden_file_outlives_its_sample(command: str) -> None:
    assert {path.stem for path in (HERE / command).iterdir()} == {sample.stem for sample in SAMPLES}


@pytest.mark.parametrize("sample", SAMPLES, ids=[sample.stem for sample in SAMPLES])
def test_a_sample_begins_with_one_or_two_lines_that_say_what_it_shows(sample: Path) -> None:
    lines = sample.read_text(encoding="utf-8").splitlines()
    comments = next(number for number, line in enumerate(lines) if not line.startswith("# "))
    assert 1 <= comments <= 2
    assert lines[comments] == "apiVersion: kimik3.dev/v1alpha1"

from __future__ import annotations

import builtins
import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "operator/kimi_k3_operator/compile/scripts/preflight.py"
problem: Callable[[dict[str, str]], str | None] = runpy.run_path(str(SCRIPT))["problem"]
SHARDS = ("model-00001.safetensors", "model-00002.safetensors")


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, str]:
    """The environment of a check that finds nothing wrong: weights, a draft and two GPUs."""
    weights, draft, devices = (tmp_path / name for name in ("weights", "draft", "dev"))
    for folder in (weights, draft, devices):
        folder.mkdir()
    (weights / "config.json").write_text("{}")
    (weights / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {s: s for s in SHARDS}}))
    for shard in SHARDS:
        (weights / shard).write_bytes(b"x")
    (draft / "config.json").write_text("{}")
    for number in range(2):
        (devices / f"nvidia{number}").touch()
    (devices / "nvidiactl").touch()
    glob = str(devices / "nvidia[0-9]*")
    return {"WEIGHTS": str(weights), "DRAFT": str(draft), "GPUS": "2", "GPU_GLOB": glob, "IMEX": "0", "PATIENCE": "0"}


def test_a_whole_machine_has_no_problem(machine: dict[str, str]):
    assert problem(machine) is None


def test_no_draft_is_needed_where_none_is_named(machine: dict[str, str]):
    assert problem(machine | {"DRAFT": ""}) is None


def test_missing_weights(machine: dict[str, str], tmp_path: Path):
    (tmp_path / "empty").mkdir()
    for folder in ("gone", "empty"):
        path = str(tmp_path / folder)
        assert problem(machine | {"WEIGHTS": path}) == (
            f"the weights folder {path} is empty or missing: check spec.weights"
        )


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json"])
def test_a_folder_that_is_no_checkpoint(machine: dict[str, str], name: str):
    (Path(machine["WEIGHTS"]) / name).unlink()
    assert "holds no config.json with model.safetensors.index.json" in str(problem(machine))


@pytest.mark.parametrize("text", ["", "{", "{}"])
def test_a_damaged_index(machine: dict[str, str], text: str):
    (Path(machine["WEIGHTS"]) / "model.safetensors.index.json").write_text(text)
    assert str(problem(machine)).endswith("model.safetensors.index.json is damaged: copy the checkpoint again")


def test_missing_and_empty_shards(machine: dict[str, str]):
    (Path(machine["WEIGHTS"]) / SHARDS[1]).write_bytes(b"")
    assert problem(machine) == (
        f"1 of 2 weight files are missing or empty in {machine['WEIGHTS']}, the first is {SHARDS[1]}"
    )
    (Path(machine["WEIGHTS"]) / SHARDS[0]).unlink()
    assert str(problem(machine)).startswith("2 of 2 weight files")


def test_a_missing_draft(machine: dict[str, str]):
    (Path(machine["DRAFT"]) / "config.json").unlink()
    assert problem(machine) == f"the draft folder {machine['DRAFT']} holds no config.json: check speculation.draft"


def test_a_wrong_number_of_gpus(machine: dict[str, str]):
    assert problem(machine | {"GPUS": "8"}) == (
        "2 of 8 GPUs are visible in the container: check the node's device plugin"
    )


def test_a_missing_imex_channel(machine: dict[str, str]):
    assert problem(machine | {"IMEX": "1"}) == (
        "no IMEX channel is in the container: check the ComputeDomain and its driver"
    )


class Run:
    """The script as the container runs it, with a clock and a termination log of its own."""

    def __init__(self, env: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.log, self.now, self.slept = tmp_path / "termination-log", 0.0, 0
        self.on_sleep: Callable[[], Any] = lambda: None
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("time.monotonic", lambda: self.now)
        monkeypatch.setattr("time.sleep", self._sleep)
        real = builtins.open

        def open_here(path: Any, *args: Any, **options: Any) -> Any:
            return real(self.log if path == "/dev/termination-log" else path, *args, **options)

        monkeypatch.setattr("builtins.open", open_here)

    def _sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += 1
        self.on_sleep()

    def start(self) -> int:
        try:
            runpy.run_path(str(SCRIPT), run_name="__main__")
        except SystemExit as end:
            return int(str(end.code))
        return 0


@pytest.fixture
def run(machine: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Run]:
    return lambda **changes: Run(machine | changes, monkeypatch, tmp_path)


def test_the_check_succeeds_silently(run: Callable[..., Run], capsys: pytest.CaptureFixture[str]):
    assert run().start() == 0
    assert capsys.readouterr().out == ""


def test_the_sentence_goes_to_the_log_and_the_termination_message(
    run: Callable[..., Run], capsys: pytest.CaptureFixture[str]
):
    started = run(GPUS="8")
    assert started.start() == 1
    assert started.slept == 0
    assert started.log.read_text() == capsys.readouterr().out.strip()


def test_a_group_looks_again_until_its_patience_ends(run: Callable[..., Run]):
    started = run(GPUS="8", PATIENCE="60")
    assert started.start() == 1
    assert started.slept == 4


def test_a_fault_that_goes_away_lets_the_engine_start(run: Callable[..., Run], machine: dict[str, str]):
    started = run(GPUS="3", PATIENCE="60")
    started.on_sleep = (Path(machine["GPU_GLOB"]).parent / "nvidia2").touch
    assert started.start() == 0
    assert not started.log.exists()

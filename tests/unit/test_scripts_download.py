from __future__ import annotations

import fcntl
import json
import runpy
import sys
import types
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "operator/kimi_k3_operator/compile/scripts/download.py"
MODULE = runpy.run_path(str(SCRIPT))
fill = MODULE["fill"]
MARKER: str = MODULE["MARKER"]
ITEM = {"repository": "moonshotai/Kimi-K3", "revision": "abc", "folder": "moonshotai--Kimi-K3@abc"}


class FakeHub:
    """Writes one file for each call; the first `failures` calls raise."""

    def __init__(self, failures: int = 0) -> None:
        self.failures, self.calls = failures, 0
        self.locked = False

    def __call__(self, *, repo_id: str, revision: str | None, local_dir: str) -> str:
        self.calls += 1
        self.locked = is_locked(Path(local_dir + ".lock"))
        if self.calls <= self.failures:
            raise ConnectionError("the hub is away")
        Path(local_dir, "config.json").write_text(f"{repo_id} {revision}")
        return local_dir


def is_locked(path: Path) -> bool:
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def never(seconds: float) -> None:
    raise AssertionError(f"paused for {seconds} s")


def test_a_repository_is_fetched_once_and_marked(tmp_path: Path):
    hub, folder = FakeHub(), tmp_path / ITEM["folder"]
    assert fill(str(tmp_path), ITEM, hub, never) is True
    assert (folder / "config.json").read_text() == "moonshotai/Kimi-K3 abc"
    assert (folder / MARKER).read_text() == "abc"
    assert fill(str(tmp_path), ITEM, hub, never) is False
    assert hub.calls == 1


def test_a_folder_without_the_marker_is_not_complete(tmp_path: Path):
    folder = tmp_path / ITEM["folder"]
    folder.mkdir()
    (folder / "config.json").write_text("half")
    assert fill(str(tmp_path), ITEM, FakeHub(), never) is True
    assert (folder / "config.json").read_text() != "half"


def test_the_default_branch_is_named_in_the_marker(tmp_path: Path):
    fill(str(tmp_path), ITEM | {"revision": None}, FakeHub(), never)
    assert (tmp_path / ITEM["folder"] / MARKER).read_text() == "main"


def test_others_are_locked_out_while_one_fetches_and_let_in_afterwards(tmp_path: Path):
    hub = FakeHub()
    fill(str(tmp_path), ITEM, hub, never)
    assert hub.locked
    assert not is_locked(tmp_path / f"{ITEM['folder']}.lock")


def test_a_failure_is_told_and_tried_again_with_growing_pauses(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    hub, pauses = FakeHub(failures=7), []
    assert fill(str(tmp_path), ITEM, hub, pauses.append) is True
    assert pauses == [10, 20, 40, 80, 160, 300, 300]
    assert hub.calls == 8
    assert "failed, next try in 10 s: the hub is away" in capsys.readouterr().out


def test_nothing_is_marked_before_it_is_whole(tmp_path: Path):
    def stop(seconds: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fill(str(tmp_path), ITEM, FakeHub(failures=1), stop)
    assert not (tmp_path / ITEM["folder"] / MARKER).exists()
    assert not is_locked(tmp_path / f"{ITEM['folder']}.lock")


def test_the_container_fetches_every_item(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    hub: Any = types.ModuleType("huggingface_hub")
    hub.snapshot_download = FakeHub()
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    monkeypatch.setenv("CACHE", str(tmp_path))
    monkeypatch.setenv("DOWNLOADS", json.dumps([ITEM, ITEM | {"folder": "draft"}, ITEM]))
    runpy.run_path(str(SCRIPT), run_name="__main__")
    assert capsys.readouterr().out.splitlines() == [
        "moonshotai/Kimi-K3: fetched",
        "moonshotai/Kimi-K3: fetched",
        "moonshotai/Kimi-K3: cached",
    ]
    assert hub.snapshot_download.calls == 2

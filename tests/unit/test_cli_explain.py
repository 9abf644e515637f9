"""`kimi-k3 explain`, `profiles`, `version`: why things are as they are."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from kimi_k3_operator import __version__
from kimi_k3_operator.cli.main import app

ROOT = Path(__file__).parents[2]


def done(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def explained(sample: str) -> dict[str, dict[str, Any]]:
    """Pool to its explanation."""
    [found] = json.loads(done("explain", "-f", str(ROOT / "samples" / f"{sample}.yaml"), "-o", "json"))
    return {pool["name"]: pool for pool in found["pools"]}


def origins(settings: list[dict[str, str]]) -> dict[str, str]:
    return {setting["set"]: setting["origin"] for setting in settings}


def rendered_container(sample: str, *, worker: bool = False) -> dict[str, Any]:
    """The engine container of the first workload that render prints."""
    result = CliRunner().invoke(app, ["render", "-f", str(ROOT / "samples" / f"{sample}.yaml"), "-o", "json"])
    workload = next(o for o in json.loads(result.stdout)["items"] if o["kind"] in ("Deployment", "LeaderWorkerSet"))
    spec = workload["spec"]
    group = spec.get("leaderWorkerTemplate") or {}
    template = spec.get("template") or group["workerTemplate" if worker else "leaderTemplate"]
    container: dict[str, Any] = template["spec"]["containers"][0]
    return container


def test_every_layer_is_named() -> None:
    dspark, overrides = explained("dspark")["b300"], explained("overrides")["b300"]
    flags = origins(dspark["flags"]) | origins(overrides["flags"])
    assert flags["--max-num-seqs 16"] == "band up to 8"
    assert flags["--no-enable-flashinfer-autotune"] == "profile b300/1"
    assert flags["--max-model-len 262144"] == "override"
    assert flags["--shutdown-timeout 1800"] == "operator"
    assert [origin for flag, origin in flags.items() if flag.startswith("--speculative-config ")] == ["speculation"]
    assert origins(overrides["environment"])["VLLM_LOGGING_LEVEL=DEBUG"] == "override"
    assert not [flag for flag in origins(overrides["flags"]) if "max-cudagraph-capture-size" in flag]


@pytest.mark.parametrize("sample", ["b300-pvc", "dspark", "overrides", "gb300-rack", "mi350x-hostpath"])
def test_what_is_explained_is_what_is_rendered(sample: str) -> None:
    import shlex

    [pool] = explained(sample).values()
    container = rendered_container(sample)
    words = shlex.split(" ".join([pool["command"], *(flag["set"] for flag in pool["flags"])]))
    assert words == [*container["command"], *container["args"]]
    variables = dict(shlex.split(found["set"])[0].split("=", 1) for found in pool["environment"])
    assert variables == {entry["name"]: entry["value"] for entry in container["env"]}


def test_the_headless_worker_is_told_by_its_differences() -> None:
    pool = explained("gb300-rack")["gb300"]
    assert origins(pool["workerFlags"]) == {"--headless": "operator", "--node-rank 1": "operator"}
    assert origins(pool["workerEnvironment"]) == {"LEADER_PORT=8000": "operator", "LONGEST=915": "operator"}
    arguments = rendered_container("gb300-rack", worker=True)["args"]
    assert "--headless" in arguments


def test_the_facts_a_model_owner_asks_for() -> None:
    facts = explained("hub-cache")["b300"]["facts"]
    assert facts["download"] == "moonshotai/Kimi-K3 at main, once, before the engine starts"
    assert facts["weights"] == "/mnt/nvme/hub/moonshotai--Kimi-K3@main on the node"
    assert explained("autoscaling")["mi350x"]["facts"]["replicas"] == "1 to 4, as an autoscaler says"
    assert explained("autoscaling")["mi350x"]["facts"]["speculation"] == (
        "off: profile mi350x/1 drafts only when asked to"
    )
    assert explained("dspark")["b300"]["facts"]["draft"] == (
        "Inferact/Kimi-K3-DSpark at /draft, drafts/Kimi-K3-DSpark in claim kimi-k3"
    )


def test_profiles_are_listed_with_their_engine() -> None:
    lines = done("profiles", "list").splitlines()
    assert lines[0].split() == ["NAME", "VERSION", "CHANNEL", "ENGINE", "HARDWARE"]
    assert [line.split()[0] for line in lines[1:]] == sorted(line.split()[0] for line in lines[1:])
    assert "b300     1         stable    vLLM 0.30.0   8 x NVIDIA B300, one node" in lines
    assert json.loads(done("profiles", "list", "-o", "json"))[0]["name"] == "b300"


@pytest.mark.parametrize("name", ["b300", "gb300", "mi350x"])
def test_a_profile_is_shown_as_its_file_says_it(name: str) -> None:
    written = yaml.safe_load((ROOT / "profiles" / name / "1.yaml").read_text())
    shown = yaml.safe_load(done("profiles", "show", f"{name}/1", "-o", "yaml"))
    assert shown["engine"]["args"] == written["engine"]["args"]
    assert shown["bands"] == written["bands"]


def test_every_value_of_a_profile_has_its_source_below_it() -> None:
    lines = done("profiles", "show", "gb300").splitlines()
    values = lines[2::2]
    sources = lines[3::2]
    assert "engine.args.max-num-batched-tokens: 8192" in values
    assert len(values) == len(sources)
    assert all(source.startswith(("    measured", "    published", "    derived")) for source in sources)


def test_the_version_needs_no_cluster_library() -> None:
    program = (
        "import sys\n"
        "from kimi_k3_operator.cli.main import app\n"
        "app(['version'], standalone_mode=False)\n"
        "sys.exit(','.join(sorted({'kopf', 'kubernetes', 'yaml', 'httpx'} & set(sys.modules))) or 0)\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment())
    assert (run.returncode, run.stderr, run.stdout) == (0, "", f"kimi-k3 {__version__}\n")


@pytest.mark.parametrize(("no_color", "styled"), [("", True), ("1", False)])
def test_colours_are_for_terminals_that_want_them(no_color: str, styled: bool) -> None:
    leader, follower = pty.openpty()
    command = [sys.executable, "-c", "from kimi_k3_operator.cli.main import app; app()", "profiles", "list"]
    given = environment() | {"TERM": "xterm", "NO_COLOR": no_color}
    with subprocess.Popen(command, stdout=follower, env=given) as process:
        os.close(follower)
        text = b""
        while chunk := _read(leader):
            text += chunk
    os.close(leader)
    assert process.returncode == 0
    assert (b"\x1b[" in text) is styled
    assert b"NAME" in text


def _read(terminal: int) -> bytes:
    """What the terminal shows next; nothing once the program has ended (Linux says so with an error)."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "operator")}

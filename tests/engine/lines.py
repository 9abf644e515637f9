"""Pools of one small deployment and the requests that ask an engine whether it takes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kimi_k3_operator.api.refusal import Refusal
from kimi_k3_operator.api.v1alpha1 import KimiK3DeploymentSpec
from kimi_k3_operator.profiles.catalog import Catalog
from kimi_k3_operator.profiles.engine import DRAFT_PATH, WEIGHTS_PATH, EngineConfig, serve_command
from kimi_k3_operator.profiles.flags import FlagTable
from kimi_k3_operator.profiles.model import Profile
from kimi_k3_operator.profiles.resolve import resolve

MODELS = Path(__file__).with_name("models")
"""Configurations with the widths and layers of Kimi K3 and of a DSpark draft with a block of 7; no weights."""

LEADER = "192.0.2.1"
"""What `$(LWS_LEADER_ADDRESS)` stands for."""


Ask = Callable[[str, dict[str, Any]], dict[str, Any]]
"""(version, request) to the driver's answer."""


@dataclass(frozen=True)
class Line:
    """One pool: a profile, a load, speculation and overrides."""

    profile: Profile
    concurrency: int = 8
    speculation: str = "Off"
    tokens: int | None = None
    args: tuple[tuple[str, str], ...] = ()
    env: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        draft = "-dspark" if self.speculation == "DSpark" else ""
        return f"{self.profile.name}-{self.profile.version}-{self.concurrency}{draft}"

    def resolve(self, version: str | None = None) -> EngineConfig | tuple[Refusal, ...]:
        """What the project makes of the pool, with the profile's engine or an image of another release."""
        pool: dict[str, Any] = {
            "name": "pool",
            "profile": {"name": self.profile.name, "version": self.profile.version},
            "replicas": 1,
            "load": {"concurrency": self.concurrency},
            "speculation": {"mode": self.speculation},
            "overrides": {"args": dict(self.args), "env": dict(self.env)},
        }
        if self.speculation != "Off":
            pool["speculation"] |= {"draft": {"id": "Inferact/Kimi-K3-DSpark", "path": DRAFT_PATH}}
            pool["speculation"] |= {"tokens": self.tokens} if self.tokens else {}
        if version is not None:
            pool["image"] = {"reference": f"registry.example/engine:{version}", "engineVersion": version}
        spec = KimiK3DeploymentSpec.model_validate({"weights": {"hostPath": {"path": "/models/k3"}}, "pools": [pool]})
        return resolve(spec, spec.pools[0], self.profile, FlagTable.load())

    def rendered(self) -> EngineConfig:
        """The engine of the pool whatever the policies say: they read the version, the command line does not."""
        known = Line(self.profile, self.concurrency, self.speculation, self.tokens).resolve()
        assert isinstance(known, EngineConfig), known
        args = {name: {"": True, "true": True, "false": False}.get(value, value) for name, value in self.args}
        return replace(known, args={**known.args, **args}, env={**known.env, **dict(self.env)})


def packaged(*names: str) -> list[Profile]:
    """Every version of the packaged profiles, or of the named ones."""
    profiles = Catalog.load(packaged=True).profiles
    return [profile for (name, _), profile in sorted(profiles.items()) if not names or name in names]


def request(engine: EngineConfig, rank: int) -> dict[str, Any]:
    """The driver's request for one rank, with the model folders of these tests."""
    _, argv = serve_command(engine, rank=rank)
    folders = {WEIGHTS_PATH: str(MODELS / "weights"), "$(LWS_LEADER_ADDRESS)": LEADER}
    draft = str(MODELS / "draft")
    argv = [folders.get(word, word).replace(f'"{DRAFT_PATH}"', f'"{draft}"') for word in argv]
    return {"argv": argv, "env": dict(engine.env), "gpus": engine.profile.hardware.gpus_per_node, "build": True}


def answers(ask: Ask, version: str, line: Line) -> list[dict[str, Any]]:
    """What the release says to each rank of the line."""
    ranks = range(line.profile.hardware.nodes_per_replica)
    return [ask(version, request(line.rendered(), rank)) for rank in ranks]

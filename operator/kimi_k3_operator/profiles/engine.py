"""`EngineConfig`: everything that decides how the engines of one pool are started."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from kimi_k3_operator.api.refusal import Refusal
from kimi_k3_operator.api.v1alpha1 import HubCache, Load, PersistentVolumeClaim, SecretKeyRef
from kimi_k3_operator.profiles.model import ArgValue, Profile

HTTP_PORT = 8000
MASTER_PORT = 29501
WEIGHTS_PATH = "/weights"
DRAFT_PATH = "/draft"


@dataclass(frozen=True)
class Folder:
    """A folder outside the container: in a claim, or on the node. `path` is the sub-path or the absolute path."""

    claim: str | None
    path: str


@dataclass(frozen=True)
class HubDownload:
    """What is fetched once into the cache before an engine starts."""

    model: str
    revision: str | None
    token: SecretKeyRef | None


@dataclass(frozen=True)
class Checkpoint:
    """Where the weights are: a folder, and for the hub what fills it."""

    folder: Folder
    download: HubDownload | None = None


@dataclass(frozen=True)
class SpeculationPlan:
    """Speculative decoding of a pool. `tokens` 0 is off; `reason` says why in a few words."""

    tokens: int
    reason: str
    draft: str = ""
    """Hub id of the draft, which names it in messages."""
    path: str = ""
    """Where the engine finds the draft."""
    folder: Folder | None = None
    """Mounted at DRAFT_PATH where the draft is not part of the image."""
    download: HubDownload | None = None


@dataclass(frozen=True)
class EngineConfig:
    """The resolved engine of one pool; the same for each of its replicas. Times are seconds."""

    pool: str
    profile: Profile
    image: str
    engine_version: str
    command: tuple[str, ...]
    args: Mapping[str, ArgValue]
    env: Mapping[str, str]
    origins: Mapping[str, str]
    """Flag or variable to the layer that set it: profile, band, speculation, override, operator."""
    checkpoint: Checkpoint
    speculation: SpeculationPlan
    served_name: str
    startup_seconds: int
    drain_seconds: int
    load: Load = field(default_factory=Load)
    """What the user expects of one replica."""
    warnings: tuple[Refusal, ...] = field(default=())

    def int_arg(self, name: str, default: int = 0) -> int:
        """The integer value of a flag; `default` where it is absent or no integer."""
        try:
            return int(str(self.args.get(name, default)))
        except ValueError:
            return default

    @property
    def termination_grace_seconds(self) -> int:
        """preStop + engine drain + margin."""
        return PRE_STOP_SECONDS + self.drain_seconds + 60


PRE_STOP_SECONDS = 15
"""The endpoint picker stops sending at the deletion timestamp; this covers what is on its way."""


def flag_tokens(args: Mapping[str, ArgValue]) -> list[str]:
    """Command-line tokens in alphabetical order of the flags; negations are spelt `--no-x`, which all versions take."""
    tokens: list[str] = []
    for name in sorted(args):
        value = args[name]
        if value is True:
            tokens.append(f"--{name}")
        elif value is False:
            tokens.append(f"--no-{name}")
        elif isinstance(value, dict):
            tokens += [f"--{name}", json.dumps(value, separators=(",", ":"), sort_keys=True)]
        else:
            tokens += [f"--{name}", str(value)]
    return tokens


def serve_command(engine: EngineConfig, *, rank: int = 0) -> tuple[list[str], list[str]]:
    """(command, args) of the engine container; `rank` is the node's rank in a multi-node replica."""
    args = dict(engine.args)
    if engine.profile.hardware.multi_node:
        args |= {
            "nnodes": engine.profile.hardware.nodes_per_replica,
            "node-rank": rank,
            "master-addr": "$(LWS_LEADER_ADDRESS)",
            "master-port": MASTER_PORT,
        }
        if rank:
            args["headless"] = True
    return list(engine.command), [WEIGHTS_PATH, *flag_tokens(args)]


def claim_or_path(source: HubCache) -> Folder:
    """The folder that a cache setting names."""
    if source.persistent_volume_claim is not None:
        return claim_folder(source.persistent_volume_claim)
    assert source.host_path is not None
    return Folder(None, source.host_path.path)


def claim_folder(claim: PersistentVolumeClaim) -> Folder:
    return Folder(claim.claim_name, claim.sub_path or "")

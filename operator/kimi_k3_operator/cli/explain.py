"""Why an engine starts the way it does: each flag and variable with the layer that set it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kimi_k3_operator.api import names
from kimi_k3_operator.api.base import Manifest
from kimi_k3_operator.api.v1alpha1 import Pool
from kimi_k3_operator.cli.judged import Accepted
from kimi_k3_operator.compile.replica import PoolKey
from kimi_k3_operator.compile.revision import compile_revision
from kimi_k3_operator.profiles.engine import EngineConfig, Folder

OPERATOR = "operator"


@dataclass(frozen=True)
class Setting:
    """One flag (`--max-num-seqs 16`) or variable (`NAME=value`) and where it comes from."""

    text: str
    origin: str


@dataclass(frozen=True)
class PoolExplained:
    name: str
    facts: Mapping[str, str]
    command: str
    flags: tuple[Setting, ...]
    worker_flags: tuple[Setting, ...]
    """Of the headless rank, those that differ."""
    environment: tuple[Setting, ...]
    worker_environment: tuple[Setting, ...]
    warnings: tuple[str, ...]

    def wire(self) -> dict[str, Any]:
        """Plain data; empty parts left out."""

        def settings(given: tuple[Setting, ...]) -> list[dict[str, str]]:
            return [{"set": setting.text, "origin": setting.origin} for setting in given]

        found = {
            "name": self.name,
            "facts": dict(self.facts),
            "command": self.command,
            "flags": settings(self.flags),
            "workerFlags": settings(self.worker_flags),
            "environment": settings(self.environment),
            "workerEnvironment": settings(self.worker_environment),
            "warnings": list(self.warnings),
        }
        return {key: value for key, value in found.items() if value}


def explained(accepted: Accepted) -> tuple[PoolExplained, ...]:
    """One entry for each pool, in the order of the resource."""
    pools = zip(accepted.deployment.spec.pools, accepted.engines, strict=True)
    return tuple(_pool(accepted, pool, engine) for pool, engine in pools)


def explanation(accepted: Accepted) -> str:
    """The same as text, for people."""
    lines = [f"KimiK3Deployment {accepted.label}"]
    for pool in explained(accepted):
        lines += ["", f"pool {pool.name}"]
        widest = max(len(key) for key in pool.facts)
        lines += [f"  {key + ':':<{widest + 1}} {value}" for key, value in pool.facts.items()]
        lines += [f"  command:{' ' * (widest - 6)}{pool.command}"]
        lines += _block("flags", pool.flags)
        lines += _block("flags of the headless worker that differ", pool.worker_flags)
        lines += _block("environment", pool.environment)
        lines += _block("environment of the headless worker that differs", pool.worker_environment)
        lines += [f"  {warning}" for warning in pool.warnings]
    return "".join(f"{line}\n" for line in lines)


def _pool(accepted: Accepted, pool: Pool, engine: EngineConfig) -> PoolExplained:
    deployment = accepted.deployment
    key = PoolKey(deployment.namespace, deployment.name, pool.name)
    claim = names.channel_claim_template(deployment.name) if engine.profile.hardware.multi_node else None
    revision = compile_revision(key, deployment.spec, pool, engine, claim)
    leader, worker = _engine(revision.leader), _engine(revision.worker) if revision.worker else None
    flags, environment = _flags(leader, engine), _environment(leader, engine)
    return PoolExplained(
        name=pool.name,
        facts=_facts(pool, engine),
        command=shlex.join([*leader["command"], leader["args"][0]]),
        flags=flags,
        worker_flags=tuple(f for f in _flags(worker, engine) if f not in flags) if worker else (),
        environment=environment,
        worker_environment=tuple(e for e in _environment(worker, engine) if e not in environment) if worker else (),
        warnings=tuple(f"warning: {warning.id}: {warning}" for warning in engine.warnings),
    )


def _facts(pool: Pool, engine: EngineConfig) -> dict[str, str]:
    profile = engine.profile
    facts = {
        "profile": f"{profile.name}/{profile.version} ({profile.channel})",
        "hardware": profile.hardware.display_name,
        "replicas": _replicas(pool),
        "image": f"{engine.image} (vLLM {engine.engine_version})",
        "weights": _folder(engine.checkpoint.folder),
    }
    if engine.checkpoint.download is not None:
        hub = engine.checkpoint.download
        facts["download"] = f"{hub.model} at {hub.revision or 'main'}, once, before the engine starts"
    facts["speculation"] = engine.speculation.reason
    if engine.speculation.tokens:
        where = f", {_folder(engine.speculation.folder)}" if engine.speculation.folder else ""
        facts["draft"] = f"{engine.speculation.draft} at {engine.speculation.path}{where}"
    facts["startup"] = f"up to {engine.startup_seconds} s"
    facts["drain"] = f"{engine.drain_seconds} s of {engine.termination_grace_seconds} s grace"
    return facts


def _replicas(pool: Pool) -> str:
    if pool.autoscaling is not None:
        return f"{pool.autoscaling.min_replicas} to {pool.autoscaling.max_replicas}, as an autoscaler says"
    return str(pool.replicas)


def _folder(folder: Folder) -> str:
    if folder.claim is None:
        return f"{folder.path} on the node"
    return f"{folder.path or '/'} in claim {folder.claim}"


def _engine(template: Manifest) -> Manifest:
    """The container that serves."""
    container: Manifest = template["spec"]["containers"][0]
    return container


def _flags(container: Manifest, engine: EngineConfig) -> tuple[Setting, ...]:
    """The arguments after the checkpoint, each flag with its value."""
    return tuple(
        Setting(_written(tokens), _origin(tokens[0].removeprefix("--"), engine))
        for tokens in _grouped(container["args"][1:])
    )


def _grouped(arguments: list[str]) -> Iterator[list[str]]:
    tokens: list[str] = []
    for argument in arguments:
        if argument.startswith("--") and tokens:
            yield tokens
            tokens = []
        tokens.append(argument)
    if tokens:
        yield tokens


def _written(tokens: list[str]) -> str:
    """As one would type it; `$(NAME)` is filled in by the kubelet and stays bare."""
    return " ".join(token if token.startswith("$(") else shlex.quote(token) for token in tokens)


def _origin(name: str, engine: EngineConfig) -> str:
    return engine.origins.get(name) or engine.origins.get(name.removeprefix("no-")) or OPERATOR


def _environment(container: Manifest, engine: EngineConfig) -> tuple[Setting, ...]:
    return tuple(
        Setting(f"{entry['name']}={shlex.quote(entry.get('value', ''))}", _origin(entry["name"], engine))
        for entry in container["env"]
    )


def _block(title: str, settings: tuple[Setting, ...]) -> Iterator[str]:
    """Settings with their origins in a column of their own; a long setting does not push the column away."""
    if not settings:
        return
    yield f"  {title}:"
    widest = max((len(s.text) for s in settings if len(s.text) <= 60), default=0)
    for setting in settings:
        yield f"    {setting.text:<{widest}}   # {setting.origin}"

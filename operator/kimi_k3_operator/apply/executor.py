"""Carry out a plan: the only step of a pass that changes anything."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from kimi_k3_operator.api import labels
from kimi_k3_operator.api.base import Manifest
from kimi_k3_operator.apply.port import ApiError, ConflictError, InvalidError, KubeApi, NotFoundError
from kimi_k3_operator.metrics import ACTIONS
from kimi_k3_operator.plan.actions import Action, Apply, Create, Delete, Gate, Scale

OnDone = Callable[[Action, Manifest | None], None]


@dataclass(frozen=True)
class Parent:
    """The deployment that a plan is for. `born` is its creation time, RFC 3339: no child of it is older."""

    namespace: str
    name: str
    born: str


@dataclass
class Outcome:
    """What went wrong, if anything."""

    conflicts: list[str] = field(default_factory=list)
    """Names that others hold, one sentence each."""
    failures: list[ApiError] = field(default_factory=list)

    @property
    def retry_after(self) -> float | None:
        """Seconds that the API server asked to wait."""
        return max((failure.retry_after for failure in self.failures if failure.retry_after), default=None)


async def carry_out(stages: Iterable[tuple[Action, ...]], parent: Parent, api: KubeApi, on_done: OnDone) -> Outcome:
    """Run the stages in order; a stage with a failure is the last one. `on_done` sees each success at once."""
    outcome = Outcome()
    for stage in stages:
        await asyncio.gather(*(_one(action, parent, api, outcome, on_done) for action in stage))
        if outcome.failures:
            break
    return outcome


async def _one(action: Action, parent: Parent, api: KubeApi, outcome: Outcome, on_done: OnDone) -> None:
    try:
        stored = await _call(action, parent, api)
    except NotFoundError as error:
        if not isinstance(action, Delete | Scale | Gate):  # those wanted something that is gone
            outcome.failures.append(error)
        return
    except ApiError as error:
        if isinstance(error, ConflictError | InvalidError) and await _taken_by_others(action, parent, api):
            outcome.conflicts.append(_conflict_sentence(action))
        else:
            outcome.failures.append(error)
        return
    if stored is not None and _is_new(action) and _foreign(stored, parent):
        outcome.conflicts.append(_conflict_sentence(action))
        try:
            await _let_go(stored, api)
        except ApiError as error:
            outcome.failures.append(error)
        return
    ACTIONS.labels(action=type(action).__name__.lower(), kind=_kind_of(action)).inc()
    on_done(action, stored)


async def _call(action: Action, parent: Parent, api: KubeApi) -> Manifest | None:
    if isinstance(action, Delete):
        await api.delete(
            action.kind, parent.namespace, action.name, uid=action.uid, resource_version=action.resource_version
        )
        return None
    if isinstance(action, Scale):
        return await api.scale("KimiK3Pool", parent.namespace, action.name, action.replicas)
    if isinstance(action, Gate):
        await api.set_pod_condition(parent.namespace, action.pod, action.uid, _condition(action))
        return None
    if isinstance(action, Create):
        return await api.create(action.manifest)
    return await api.apply(action.manifest, force=action.owned)


def _condition(gate: Gate) -> Manifest:
    return {
        "type": labels.VERIFIED,
        "status": "True" if gate.open else "False",
        "reason": gate.reason,
        "message": gate.message,
        "lastTransitionTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def _is_new(action: Action) -> bool:
    return isinstance(action, Create) or (isinstance(action, Apply) and not action.owned)


async def _taken_by_others(action: Action, parent: Parent, api: KubeApi) -> bool:
    """After a refused creation: is the name taken by an object that is not ours?"""
    if not isinstance(action, Create | Apply) or not _is_new(action):
        return False
    metadata = action.manifest["metadata"]
    try:
        return _foreign(await api.get(action.manifest["kind"], parent.namespace, metadata["name"]), parent)
    except ApiError:
        return False


def _foreign(stored: Manifest, parent: Parent) -> bool:
    """Older than the deployment, or without its label: somebody else made it."""
    metadata = stored["metadata"]
    ours = (metadata.get("labels") or {}).get(labels.DEPLOYMENT) == parent.name
    return not ours or metadata.get("creationTimestamp", "") < parent.born


async def _let_go(stored: Manifest, api: KubeApi) -> None:
    """Apply nothing: the server drops every field that only we own, and the object is as it was."""
    metadata = stored["metadata"]
    bare = {
        "apiVersion": stored["apiVersion"],
        "kind": stored["kind"],
        "metadata": {"name": metadata["name"], "namespace": metadata["namespace"]},
    }
    await api.apply(bare, force=False)


def _kind_of(action: Action) -> str:
    if isinstance(action, Delete):
        return action.kind
    if isinstance(action, Gate):
        return "Pod"
    return "KimiK3Pool" if isinstance(action, Scale) else str(action.manifest["kind"])


def _conflict_sentence(action: Action) -> str:
    assert isinstance(action, Apply | Create)
    kind, name = action.manifest["kind"], action.manifest["metadata"]["name"]
    return f"{kind} {name} exists and is not this deployment's: rename or remove it, or rename the deployment"

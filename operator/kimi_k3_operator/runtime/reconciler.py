"""One pass of one deployment, with its effects: gather, plan, carry out, say."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from kimi_k3_operator.api import labels
from kimi_k3_operator.api.base import Manifest
from kimi_k3_operator.apply.executor import Outcome, Parent, carry_out
from kimi_k3_operator.apply.port import ApiError, ConflictError, KubeApi, NotFoundError
from kimi_k3_operator.inventory.model import Promise
from kimi_k3_operator.metrics import CONDITION, PASS_SECONDS, PASSES, REPLICAS
from kimi_k3_operator.plan.actions import Action, Delete, Event, Plan, Scale
from kimi_k3_operator.plan.engine import Planner, owner_reference
from kimi_k3_operator.plan.snapshot import Child, Snapshot
from kimi_k3_operator.plan.teardown import teardown
from kimi_k3_operator.runtime.lease import Standing
from kimi_k3_operator.runtime.overlay import Overlay
from kimi_k3_operator.runtime.prober import Prober
from kimi_k3_operator.runtime.wakeups import Key, Pass
from kimi_k3_operator.runtime.world import World

CONFLICT_SECONDS = 30.0
"""How often a name that somebody else holds is tried again."""
STATUS_SECONDS = 1.0
"""The least time between two writes of one status."""

log = logging.getLogger(__name__)


class Ledger:
    """Promises of this process that no watch has shown yet. A snapshot and its promises have no await between them, so
    two passes never promise one node."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str], Promise] = {}

    def promise(self, promises: tuple[Promise, ...]) -> None:
        for promise in promises:
            self._open[promise.namespace, promise.replica] = promise

    def open_promises(self, shown: tuple[Promise, ...]) -> tuple[Promise, ...]:
        """Those that `shown` does not hold; the others are forgotten here."""
        for known in shown:
            self._open.pop((known.namespace, known.replica), None)
        return tuple(self._open.values())

    def withdraw(self, namespace: str, deployment: str, kept: frozenset[str] = frozenset()) -> None:
        """Forget what was promised to a deployment, but for the replicas in `kept`."""
        for key, promise in list(self._open.items()):
            if (promise.namespace, promise.deployment) == (namespace, deployment) and promise.replica not in kept:
                del self._open[key]


class Reconciler:
    """All passes of one deployment object (one UID). The ledger and the world are shared by all."""

    def __init__(self, key: Key, api: KubeApi, planner: Planner, world: World, ledger: Ledger, prober: Prober) -> None:
        self._key, self._api, self._planner, self._world, self._ledger = key, api, planner, world, ledger
        self._prober = prober
        self.overlay = Overlay()
        self._body: Manifest | None = None
        self._status_written: dict[str, float] = {}
        self._conflicts: tuple[str, ...] = ()

    async def run(self, body: Mapping[str, Any], standing: Standing, current: Pass) -> None:
        """One pass; says in `current` how it went. Raises nothing but cancellation and programming errors."""
        if standing.stand_by:
            self._prober.watch(())
            return
        began = time.monotonic()
        snapshot = self._snapshot(body, standing)
        try:
            if snapshot.deleting:
                await self._tear_down(snapshot, current)
            else:
                await self._reconcile(snapshot, current)
        except ApiError as error:
            log.warning("%s/%s: %s", *self._key, error)
            current.failed, current.retry_after = True, error.retry_after
        PASSES.labels(result="error" if current.failed else "success").inc()
        PASS_SECONDS.observe(time.monotonic() - began)

    async def _reconcile(self, snapshot: Snapshot, current: Pass) -> None:
        if labels.FINALIZER not in (snapshot.body["metadata"].get("finalizers") or ()):
            await self._set_finalizer(snapshot, present=True)
            snapshot = self._snapshot(snapshot.body, Standing(snapshot.planned_by, stand_by=False))
        plan = self._planner.plan(snapshot)
        self._ledger.promise(plan.promises)
        self._prober.watch(plan.targets)
        self._note_waiting(plan)
        outcome = await carry_out(plan.stages, self._parent(snapshot), self._api, self._done)
        if outcome.failures:
            self._ledger.withdraw(*self._key, kept=self._existing())
        self._conflicts = tuple(sorted(outcome.conflicts))
        if self._conflicts != snapshot.conflicts:
            plan = replace(self._planner.plan(replace(snapshot, conflicts=self._conflicts)), stages=())
        due = await self._say(snapshot, plan, outcome)
        current.failed = bool(outcome.failures)
        current.retry_after = outcome.retry_after
        current.requeue_after = due if not self._conflicts else min(due or CONFLICT_SECONDS, CONFLICT_SECONDS)
        for failure in outcome.failures:
            log.warning("%s/%s: %s", *self._key, failure)

    async def _tear_down(self, snapshot: Snapshot, current: Pass) -> None:
        """One step of the end; takes the finalizer off when nothing is left to wait for."""
        if labels.FINALIZER not in (snapshot.body["metadata"].get("finalizers") or ()):
            return
        self._prober.watch(())
        step = teardown(snapshot)
        outcome = await carry_out((step.deletions,), self._parent(snapshot), self._api, self._done)
        failures = [failure for failure in outcome.failures if not isinstance(failure, ConflictError)]
        if failures:
            raise failures[0]
        if step.leftover_groups:
            await self._sweep_stateful_sets()
        if step.waits_for:
            current.requeue_after = 1.0
        else:
            await self._set_finalizer(snapshot, present=False)

    async def _set_finalizer(self, snapshot: Snapshot, *, present: bool) -> None:
        """Put our finalizer on or take it off; those of others stay."""
        body = dict(snapshot.body)
        others = [name for name in body["metadata"].get("finalizers") or () if name != labels.FINALIZER]
        try:
            self._body = await self._api.set_finalizers(body, [*others, labels.FINALIZER] if present else others)
        except NotFoundError:
            return

    def forget(self) -> None:
        """The deployment is gone: nothing of it may stay behind in this process."""
        namespace, name = self._key
        self._prober.watch(())
        self._ledger.withdraw(namespace, name)
        self._world.waiting.discard(self._key)
        for metric in (CONDITION, REPLICAS):
            metric.remove_by_labels({"namespace": namespace, "name": name})

    def _snapshot(self, body: Mapping[str, Any], standing: Standing) -> Snapshot:
        live: Mapping[str, Any] = body
        if self._body is not None and _version(self._body) > _version(body):
            live = self._body
        inventory = self._world.inventory()
        return Snapshot(
            body=live,
            children=self.overlay.merge(self._world.children(self._key), time.monotonic()),
            pods=self._world.pods(self._key),
            inventory=inventory.with_promises(self._ledger.open_promises(inventory.promises)),
            apis=self._world.apis(),
            planned_by=standing.planned_by,
            now=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            conflicts=self._conflicts,
            probes=self._prober.probes,
        )

    def _parent(self, snapshot: Snapshot) -> Parent:
        return Parent(*self._key, born=str(snapshot.body["metadata"].get("creationTimestamp", "")))

    def _existing(self) -> frozenset[str]:
        children = self.overlay.merge(self._world.children(self._key), time.monotonic())
        return frozenset(child.replica for child in children if child.replica)

    def _done(self, action: Action, stored: Manifest | None) -> None:
        now = time.monotonic()
        if isinstance(action, Delete):
            self.overlay.deleted(action.uid)
        elif isinstance(action, Scale):
            pool = self._child("KimiK3Pool", action.name)
            if pool is not None and stored is not None:
                self.overlay.scaled(pool, stored, now)
        elif stored is not None:
            self.overlay.wrote(stored, now)

    def _child(self, kind: str, name: str) -> Child | None:
        children = self.overlay.merge(self._world.children(self._key), time.monotonic())
        return next((child for child in children if child.identity == (kind, name)), None)

    async def _say(self, snapshot: Snapshot, plan: Plan, outcome: Outcome) -> float | None:
        """Write the statuses that changed and post events; returns the seconds until a held-back status is due."""
        waits = []
        name = self._key[1]
        for pool_name, status in plan.pool_statuses.items():
            pool = self._child("KimiK3Pool", pool_name)
            if pool is not None and not pool.terminating and pool.status != status:
                waits.append(await self._write("KimiK3Pool", pool_name, pool.uid, status, outcome))
        if (snapshot.body.get("status") or {}) != plan.status:
            waits.append(await self._write("KimiK3Deployment", name, snapshot.uid, plan.status, outcome))
            if waits[-1] is None:
                await asyncio.gather(*(self._post(snapshot, event) for event in plan.events))
        self._count(plan)
        return min((wait for wait in waits if wait is not None), default=None)

    async def _write(self, kind: str, name: str, uid: str, status: Manifest, outcome: Outcome) -> float | None:
        """Write a status now, or say in how many seconds it may be written."""
        now = time.monotonic()
        wait = self._status_written.get(name, -STATUS_SECONDS) + STATUS_SECONDS - now
        if wait > 0:
            return wait
        try:
            stored = await self._api.write_status(kind, self._key[0], name, uid, status)
        except NotFoundError:
            return None
        except ConflictError:
            return STATUS_SECONDS  # a namesake was made meanwhile; its own pass speaks for it
        except ApiError as error:
            outcome.failures.append(error)
            return None
        self._status_written[name] = time.monotonic()
        if kind == "KimiK3Deployment":
            self._body = stored
        else:
            self.overlay.wrote(stored, time.monotonic())
        return None

    async def _post(self, snapshot: Snapshot, event: Event) -> None:
        namespace, name = self._key
        involved = {key: value for key, value in owner_reference(snapshot.body).items() if not isinstance(value, bool)}
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{name}.{uuid.uuid4().hex[:16]}", "namespace": namespace},
            "involvedObject": {**involved, "namespace": namespace},
            "type": event.type,
            "reason": event.reason,
            "message": event.message[:1000],
            "source": {"component": labels.OPERATOR},
            "firstTimestamp": snapshot.now,
            "lastTimestamp": snapshot.now,
            "count": 1,
        }
        try:
            await self._api.create(body)
        except ApiError as error:
            log.info("an event was not posted: %s", error)

    async def _sweep_stateful_sets(self) -> None:
        """Delete what a vanished LeaderWorkerSet API left behind; only StatefulSets that such a set owned."""
        namespace, name = self._key
        selector = f"{labels.MANAGED_SELECTOR},{labels.DEPLOYMENT}={name}"
        try:
            for found in await self._api.select("StatefulSet", namespace, selector):
                uid = found["metadata"]["uid"]
                await self._api.delete("StatefulSet", namespace, found["metadata"]["name"], uid=uid)
        except ApiError as error:
            log.warning("%s/%s: %s", namespace, name, error)

    def _note_waiting(self, plan: Plan) -> None:
        short = any(c["type"] == "CapacityAvailable" and c["status"] != "True" for c in plan.status["conditions"])
        (self._world.waiting.add if short else self._world.waiting.discard)(self._key)

    def _count(self, plan: Plan) -> None:
        namespace, name = self._key
        for condition in plan.status["conditions"]:
            for status in ("True", "False", "Unknown"):
                value = 1 if condition["status"] == status else 0
                CONDITION.labels(namespace, name, condition["type"], status).set(value)
        for pool in plan.status.get("pools") or ():
            for state in ("desired", "ready"):
                REPLICAS.labels(namespace, name, pool["name"], state).set(pool[state])


def _version(body: Mapping[str, Any]) -> int:
    version = str(body["metadata"].get("resourceVersion", ""))
    return int(version) if version.isdigit() else 0

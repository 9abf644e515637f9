"""The parts of a running operator and what connects them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import httpx

from kimi_k3_operator.api.base import Manifest
from kimi_k3_operator.apply.kinds import CHILD_KINDS
from kimi_k3_operator.apply.port import ApiError, KubeApi
from kimi_k3_operator.inventory.model import NodeView
from kimi_k3_operator.plan.engine import Planner
from kimi_k3_operator.runtime.config import Config
from kimi_k3_operator.runtime.health import Pulse
from kimi_k3_operator.runtime.lease import PlanningLease
from kimi_k3_operator.runtime.prober import PROBES_AT_ONCE, Prober
from kimi_k3_operator.runtime.reconciler import Ledger, Reconciler
from kimi_k3_operator.runtime.wakeups import Key, Wakeups
from kimi_k3_operator.runtime.worker import Worker
from kimi_k3_operator.runtime.world import APIS, DOMAINS, NODES, PODS, World

DISCOVERY_SECONDS = 60
"""How long discovery may take to list an established CRD."""

log = logging.getLogger(__name__)


class App:
    """One operator process."""

    def __init__(
        self, config: Config, api: KubeApi, planner: Planner, pulse: Pulse, engines: httpx.AsyncClient
    ) -> None:
        self.config, self.api, self.planner, self.pulse = config, api, planner, pulse
        self.world, self.wakeups, self._ledger = World(), Wakeups(), Ledger()
        self.lease = PlanningLease(
            api,
            namespace=config.lease_namespace,
            identity=config.identity,
            scope=config.scope,
            changed=self.wakeups.wake_all,
        )
        self._engines, self._probe_slots = engines, asyncio.Semaphore(PROBES_AT_ONCE)
        self._index_names = (NODES, PODS, APIS, DOMAINS, *(kind.plural for kind in CHILD_KINDS))
        self.rewatch = asyncio.Event()
        """Set when the watches must start again, because an API was installed that they do not know."""
        self._watched_apis: frozenset[str] = frozenset()
        self._discovery: set[asyncio.Task[None]] = set()
        self._workers: dict[Key, Worker] = {}
        self._nodes: dict[str, NodeView] = {}

    async def before_watches(self) -> None:
        """Note which optional APIs there are when the watches start."""
        self.rewatch = asyncio.Event()
        served = [kind.kind for kind in CHILD_KINDS if kind.optional and await self.api.serves(kind.kind)]
        self._watched_apis = frozenset(served)

    def api_seen(self, kind: str) -> None:
        """An optional API changed. One that was installed meanwhile is not watched for sure: kopf looks for it when
        its CRD changes, and discovery may know it only a moment later, when nothing changes any more.
        """
        if kind in self.world.apis() and kind not in self._watched_apis:
            self._watched_apis |= {kind}
            task = asyncio.create_task(self._watch_api(kind))
            self._discovery.add(task)
            task.add_done_callback(self._discovery.discard)

    async def _watch_api(self, kind: str) -> None:
        for _ in range(DISCOVERY_SECONDS):
            try:
                if await self.api.serves(kind):
                    break
            except ApiError as error:
                log.info("discovery of %s: %s", kind, error)
            await asyncio.sleep(1)
        log.info("the API of %s was installed", kind)
        self.rewatch.set()

    def filled(self, indices: Mapping[str, Any]) -> None:
        """kopf's indices hold everything that was there at the start: passes may begin."""
        self.world.attach({name: indices[name] for name in self._index_names})
        self.pulse.ready = True

    def deployment_seen(self, key: Key, body: Manifest) -> None:
        """A watch shows a deployment: start its worker, or tell the running one."""
        worker = self._workers.get(key)
        if worker is not None and worker.uid != body["metadata"]["uid"]:
            worker.stop()  # made anew under the old name: nothing is shared with it
            worker.reconciler.forget()
            worker = None
        if worker is None:
            prober = Prober(key, self._engines, self._probe_slots, self.wakeups.wake)
            reconciler = Reconciler(key, self.api, self.planner, self.world, self._ledger, prober)
            self._workers[key] = Worker(key, body, reconciler, self.wakeups, lambda: self.lease.standing)
        elif worker.tell(body):
            self.wakeups.wake(key)

    async def deployment_gone(self, key: Key, uid: str) -> None:
        worker = self._workers.get(key)
        if worker is not None and worker.uid == uid:
            del self._workers[key]
            await worker.finish()

    async def close(self) -> None:
        """Stop all workers. What is under way is cut off: the next process goes on from what the API server holds."""
        workers, self._workers = tuple(self._workers.values()), {}
        for worker in workers:
            worker.stop()
        await asyncio.gather(*(worker.finish() for worker in workers))

    def wake(self, key: Key) -> None:
        self.wakeups.wake(key)

    def wake_waiting(self) -> None:
        """A node or a GPU may have become free."""
        for key in tuple(self.world.waiting):
            self.wakeups.wake(key)

    def child_gone(self, key: Key, identity: tuple[str, str], uid: str) -> None:
        if (worker := self._workers.get(key)) is not None:
            worker.reconciler.overlay.gone(identity, uid)

    def node_is_new(self, name: str, node: NodeView | None) -> bool:
        """Whether a node's event says anything that matters; heartbeats do not."""
        if self._nodes.get(name) == node:
            return False
        if node is None:
            self._nodes.pop(name, None)
        else:
            self._nodes[name] = node
        return True

"""A level-triggered list+watch loop for the controllers that the harness imitates.

Each source is mirrored in memory and indexed by reconcile key, so that a reconcile reads its own objects only and a
controller of some hundred objects stays cheap.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import httpx

from tests.harness.kube import Kube, KubeError, Object, resource_path

Key = tuple[str, str]

log = logging.getLogger(__name__)

RELIST_SECONDS = 0.3
FIRST_RETRY_SECONDS = 0.05
LAST_RETRY_SECONDS = 5.0


def key_of(obj: Object) -> Key:
    """(namespace, name); the namespace of a cluster-scoped object is empty."""
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def own_key(obj: Object) -> list[Key]:
    return [key_of(obj)]


def keyed_by_label(label: str) -> Callable[[Object], list[Key]]:
    """The key function for objects that name their owner in a label."""

    def keys(obj: Object) -> list[Key]:
        name = obj["metadata"].get("labels", {}).get(label)
        return [(obj["metadata"].get("namespace", ""), name)] if name else []

    return keys


def rfc3339() -> str:
    """The present time as Kubernetes writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True)
class Source:
    """One kind to follow in all namespaces; `keys` says which reconcile keys an object concerns."""

    api_version: str
    plural: str
    keys: Callable[[Object], Iterable[Key]]
    selector: str | None = None


class Mirror:
    """All objects of one source as last seen."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.listed = asyncio.Event()
        self._objects: dict[Key, Object] = {}
        self._by_key: dict[Key, dict[Key, Object]] = {}
        self._departed: dict[Key, list[Object]] = {}

    def of(self, key: Key) -> list[Object]:
        """The objects that concern a reconcile key, by name."""
        return [obj for _, obj in sorted(self._by_key.get(key, {}).items())]

    def get(self, key: Key) -> Object | None:
        return self._objects.get(key)

    def all(self) -> list[Object]:
        return list(self._objects.values())

    def departed(self, key: Key) -> list[Object]:
        """Objects seen with a deletionTimestamp that vanished since `forget`.

        An informer-driven controller acts on the first event; without this list a quick deletion would fall between
        two reconciles. An object removed without a visible deletionTimestamp is not in it.
        """
        return list(self._departed.get(key, ()))

    def forget(self, key: Key, departed: list[Object]) -> None:
        left = [obj for obj in self._departed.get(key, ()) if obj not in departed]
        if left:
            self._departed[key] = left
        else:
            self._departed.pop(key, None)

    def put(self, obj: Object) -> set[Key]:
        """Store an object; returns the keys to reconcile."""
        name = key_of(obj)
        before = self._objects.get(name)
        replaced = before is not None and before["metadata"]["uid"] != obj["metadata"]["uid"]
        touched = self._remove(name, departed=replaced)
        self._objects[name] = obj
        for key in self.source.keys(obj):
            self._by_key.setdefault(key, {})[name] = obj
            touched.add(key)
        return touched

    def drop(self, name: Key) -> set[Key]:
        """Remove an object; returns the keys to reconcile."""
        return self._remove(name, departed=True)

    def replace(self, items: Iterable[Object]) -> set[Key]:
        """Make the mirror equal to a fresh list; returns the keys to reconcile."""
        fresh = {key_of(obj): obj for obj in items}
        touched: set[Key] = set()
        for name in self._objects.keys() - fresh.keys():
            touched |= self.drop(name)
        for obj in fresh.values():
            touched |= self.put(obj)
        return touched

    def _remove(self, name: Key, *, departed: bool) -> set[Key]:
        before = self._objects.pop(name, None)
        if before is None:
            return set()
        keys = set(self.source.keys(before))
        for key in keys:
            mine = self._by_key[key]
            del mine[name]
            if not mine:
                del self._by_key[key]
            if departed and "deletionTimestamp" in before["metadata"]:
                self._departed.setdefault(key, []).append(before)
        return keys


class Controller(ABC):
    """Subclasses name `sources` and implement `reconcile`; `run` goes on until it is cancelled."""

    sources: tuple[Source, ...] = ()
    concurrency = 8

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig
        self._mirrors = {source.plural: Mirror(source) for source in self.sources}
        self._queue: asyncio.Queue[Key] = asyncio.Queue()
        self._waiting: set[Key] = set()
        self._active: set[Key] = set()
        self._failures: dict[Key, int] = {}

    async def prepare(self, kube: Kube) -> None:  # noqa: B027 - most controllers have nothing to prepare
        """Called once before the first reconcile; retried while the API server refuses."""

    @abstractmethod
    async def reconcile(self, kube: Kube, key: Key) -> None:
        """Bring about what the mirrors say of one key; an exception is tried again with back-off."""

    def mirror(self, plural: str) -> Mirror:
        return self._mirrors[plural]

    def enqueue(self, keys: Iterable[Key]) -> None:
        """Reconcile these keys soon; a key that is being reconciled now comes again afterwards."""
        for key in keys:
            if key not in self._waiting:
                self._waiting.add(key)
                if key not in self._active:
                    self._queue.put_nowait(key)

    async def run(self) -> None:
        """Follow the cluster until cancelled; an absent API server or CRD is waited for."""
        async with Kube(self._kubeconfig) as kube, asyncio.TaskGroup() as tasks:
            for mirror in self._mirrors.values():
                tasks.create_task(self._follow(kube, mirror))
            await self._prepare(kube)
            for mirror in self._mirrors.values():
                await mirror.listed.wait()
            for _ in range(self.concurrency):
                tasks.create_task(self._work(kube))

    async def _prepare(self, kube: Kube) -> None:
        while True:
            try:
                await self.prepare(kube)
                return
            except (KubeError, httpx.HTTPError) as error:
                log.info("%s waits to start: %s", type(self).__name__, error)
                await asyncio.sleep(RELIST_SECONDS)

    async def _follow(self, kube: Kube, mirror: Mirror) -> None:
        source = mirror.source
        while True:
            try:
                params = {"labelSelector": source.selector} if source.selector else None
                listed = await kube.request("GET", resource_path(source.api_version, source.plural), params=params)
                self.enqueue(mirror.replace(listed["items"]))
                mirror.listed.set()
                await self._watch(kube, mirror, listed["metadata"]["resourceVersion"])
            except KubeError as error:
                if error.code == 404:
                    self.enqueue(mirror.replace(()))
                    mirror.listed.set()
                else:
                    log.debug("list or watch of %s: %s", source.plural, error)
            except (httpx.HTTPError, ValueError) as error:
                log.debug("list or watch of %s broke off: %r", source.plural, error)
            await asyncio.sleep(RELIST_SECONDS)

    async def _watch(self, kube: Kube, mirror: Mirror, version: str) -> None:
        source = mirror.source
        async for event, obj in kube.watch(
            source.api_version, source.plural, selector=source.selector, resource_version=version
        ):
            if event == "ERROR":
                return
            if event == "DELETED":
                self.enqueue(mirror.drop(key_of(obj)))
            elif event != "BOOKMARK":
                self.enqueue(mirror.put(obj))

    async def _work(self, kube: Kube) -> None:
        while True:
            key = await self._queue.get()
            self._waiting.discard(key)
            self._active.add(key)
            try:
                await self.reconcile(kube, key)
                self._failures.pop(key, None)
            except (KubeError, httpx.HTTPError) as error:
                log.info("%s %s: %s", type(self).__name__, key, error)
                self._retry(key)
            except Exception:
                log.exception("%s %s", type(self).__name__, key)
                self._retry(key)
            finally:
                self._active.discard(key)
                if key in self._waiting:
                    self._queue.put_nowait(key)

    def _retry(self, key: Key) -> None:
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        delay = min(FIRST_RETRY_SECONDS * 2 ** min(failures - 1, 10), LAST_RETRY_SECONDS)
        asyncio.get_running_loop().call_later(delay, self.enqueue, [key])

"""Doubles of what the operator talks to."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from kimi_k3_operator.api.base import Manifest
from kimi_k3_operator.apply.port import ApiError, ConflictError, NotFoundError

Call = tuple[str, str, str]
"""Verb, kind and name."""
MANAGER = "kimi-k3-operator"


class FakeKubeApi:
    """`KubeApi` in memory. Server-side apply knows whole top-level fields and `metadata.labels` and their owners.

    `refuse` decides for each call, before it does anything, whether to raise; `lose` whether the answer is lost after
    it was done.
    """

    def __init__(self, born: str = "2026-01-01T00:00:10Z") -> None:
        self.objects: dict[tuple[str, str], Manifest] = {}
        self.calls: list[Call] = []
        self.refuse: Callable[[Call], ApiError | None] = lambda call: None
        self.lose: Callable[[Call], bool] = lambda call: False
        self._owned: dict[tuple[str, str], set[str]] = {}
        self._born, self._version = born, 0

    def there(self, manifest: Manifest, *, born: str, owned: tuple[str, ...] = ()) -> Manifest:
        """Put an object there that was made before, with the fields that our manager owns of it."""
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        self._owned[kind, name] = set(owned)
        return self._store(kind, name, manifest, born)

    def verbs(self) -> list[str]:
        return [verb for verb, _, _ in self.calls]

    async def serves(self, kind: str) -> bool:
        self._called("serves", kind, "")
        return True

    async def set_pod_condition(self, namespace: str, pod: str, uid: str, condition: Manifest) -> None:
        self._called("set_pod_condition", "Pod", pod)

    async def apply(self, manifest: Manifest, *, force: bool) -> Manifest:
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        self._called("apply", kind, name)
        live = self.objects.get((kind, name))
        declared = {key for key in manifest if key not in ("apiVersion", "kind", "metadata")}
        declared |= {"labels"} if manifest["metadata"].get("labels") else set()
        mine = self._owned.setdefault((kind, name), set())
        if live is None:
            stored = self._store(kind, name, manifest, self._born)
        else:
            for field in declared - mine:
                if not force and _field(live, field) not in (None, _field(manifest, field)):
                    raise ConflictError(409, f"{field} of {kind} {name} is owned by another manager")
            merged = copy.deepcopy(live)
            for field in mine - declared:
                _where(merged, field).pop(field, None)
            for field in declared:
                _where(merged, field)[field] = copy.deepcopy(_field(manifest, field))
            stored = self._store(kind, name, merged, live["metadata"]["creationTimestamp"])
        self._owned[kind, name] = declared
        return self._answer(stored, "apply", kind, name)

    async def create(self, manifest: Manifest) -> Manifest:
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        self._called("create", kind, name)
        if (kind, name) in self.objects:
            raise ConflictError(409, f"{kind} {name} exists")
        self._owned[kind, name] = {key for key in manifest if key not in ("apiVersion", "kind", "metadata")} | {
            "labels"
        }
        return self._answer(self._store(kind, name, manifest, self._born), "create", kind, name)

    async def get(self, kind: str, namespace: str, name: str) -> Manifest:
        self._called("get", kind, name)
        return copy.deepcopy(self._live(kind, name))

    async def select(self, kind: str, namespace: str, selector: str) -> list[Manifest]:
        self._called("list", kind, selector)
        return [copy.deepcopy(body) for (found, _), body in self.objects.items() if found == kind]

    async def replace(self, manifest: Manifest) -> Manifest:
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        self._called("replace", kind, name)
        live = self._live(kind, name)["metadata"]
        if manifest["metadata"]["resourceVersion"] != live["resourceVersion"]:
            raise ConflictError(409, f"{kind} {name} has been modified")
        return self._answer(self._store(kind, name, manifest, live["creationTimestamp"]), "replace", kind, name)

    async def delete(
        self, kind: str, namespace: str, name: str, *, uid: str, resource_version: str | None = None
    ) -> None:
        self._called("delete", kind, name)
        live = self.objects.get((kind, name))
        if live is None or live["metadata"]["uid"] != uid:
            return
        if resource_version and live["metadata"]["resourceVersion"] != resource_version:
            raise ConflictError(409, f"{kind} {name} has been modified")
        del self.objects[kind, name]

    async def scale(self, kind: str, namespace: str, name: str, replicas: int) -> Manifest:
        self._called("scale", kind, name)
        live = self._live(kind, name)
        live["spec"]["replicas"] = replicas
        stored = self._store(kind, name, live, live["metadata"]["creationTimestamp"])
        return {"kind": "Scale", "metadata": stored["metadata"], "spec": {"replicas": replicas}}

    async def set_finalizers(self, body: Manifest, finalizers: list[str]) -> Manifest:
        kind, name = body["kind"], body["metadata"]["name"]
        self._called("finalizers", kind, name)
        live = self._live(kind, name)
        live["metadata"]["finalizers"] = list(finalizers)
        return self._store(kind, name, live, live["metadata"]["creationTimestamp"])

    async def write_status(self, kind: str, namespace: str, name: str, uid: str, status: Manifest) -> Manifest:
        self._called("status", kind, name)
        live = self._live(kind, name)
        if live["metadata"]["uid"] != uid:
            raise ConflictError(409, f"{kind} {name} is another object now")
        return self._store(kind, name, live | {"status": status}, live["metadata"]["creationTimestamp"])

    def _called(self, *call: str) -> None:
        verb, kind, name = call
        self.calls.append((verb, kind, name))
        if (error := self.refuse((verb, kind, name))) is not None:
            raise error

    def _live(self, kind: str, name: str) -> Manifest:
        try:
            return self.objects[kind, name]
        except KeyError:
            raise NotFoundError(404, f"{kind} {name} is not there") from None

    def _store(self, kind: str, name: str, manifest: Manifest, born: str) -> Manifest:
        self._version += 1
        stored = copy.deepcopy(manifest)
        uid = self.objects.get((kind, name), {"metadata": {}})["metadata"].get("uid", f"uid-{self._version}")
        stored["metadata"] |= {"uid": uid, "resourceVersion": str(self._version), "creationTimestamp": born}
        self.objects[kind, name] = stored
        return copy.deepcopy(stored)

    def _answer(self, stored: Manifest, *call: str) -> Manifest:
        verb, kind, name = call
        if self.lose((verb, kind, name)):
            raise ApiError(0, f"{verb} {kind} {name}: the connection broke")
        return stored


def _where(body: Manifest, field: str) -> dict[str, Any]:
    return body["metadata"] if field == "labels" else body


def _field(body: Manifest, field: str) -> Any:
    return _where(body, field).get(field)

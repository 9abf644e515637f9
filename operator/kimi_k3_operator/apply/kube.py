"""`KubeApi` over the official asynchronous client, which brings credentials, their refresh, TLS and pooling."""

from __future__ import annotations

import asyncio
import json
import time
from types import TracebackType
from typing import Any, Self

import aiohttp
from kubernetes.aio.client import ApiClient

from kimi_k3_operator.api.base import Manifest
from kimi_k3_operator.api.labels import OPERATOR
from kimi_k3_operator.apply.kinds import KINDS
from kimi_k3_operator.apply.port import ApiError, ConflictError, InvalidError, NotFoundError
from kimi_k3_operator.metrics import API_REQUESTS, API_SECONDS

CALLS_IN_FLIGHT = 16
REQUEST_SECONDS = 60
_APPLY = "application/apply-patch+yaml"
_MERGE = "application/merge-patch+json"
_STRATEGIC = "application/strategic-merge-patch+json"
_SCHEMA_FAULT = "failed to create typed patch object"
"""The server answers 500 where an applied field is not in the schema; trying again does not help."""


class Kube:
    """Use as an asynchronous context manager; at most CALLS_IN_FLIGHT requests run at a time."""

    def __init__(self, client: ApiClient) -> None:
        self._client: Any = client  # most of it is untyped
        self._slots = asyncio.Semaphore(CALLS_IN_FLIGHT)

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.__aexit__(kind, error, trace)

    async def apply(self, manifest: Manifest, *, force: bool) -> Manifest:
        """Server-side apply; raises ConflictError where another manager owns a field and `force` is false."""
        query = {"fieldManager": OPERATOR, "force": "true" if force else "false", "fieldValidation": "Strict"}
        return await self._send("PATCH", manifest, body=manifest, query=query, content=_APPLY)

    async def create(self, manifest: Manifest) -> Manifest:
        """POST; raises ConflictError where the name is taken."""
        query = {"fieldManager": OPERATOR, "fieldValidation": "Strict"}
        return await self._send("POST", manifest, body=manifest, query=query, collection=True)

    async def replace(self, manifest: Manifest) -> Manifest:
        """PUT; raises ConflictError where the object changed since it was read."""
        return await self._send("PUT", manifest, body=manifest)

    async def get(self, kind: str, namespace: str, name: str) -> Manifest:
        return await self._send("GET", _named(kind, namespace, name))

    async def select(self, kind: str, namespace: str, selector: str) -> list[Manifest]:
        answer = await self._send(
            "GET", _named(kind, namespace, ""), query={"labelSelector": selector}, collection=True
        )
        return list(answer.get("items") or ())

    async def serves(self, kind: str) -> bool:
        """Whether discovery lists the kind now."""
        known = KINDS[kind]
        try:
            listed = await self._request("GET", known.discovery_path, kind)
        except NotFoundError:
            return False
        return any(resource.get("name") == known.plural for resource in listed.get("resources") or ())

    async def delete(
        self, kind: str, namespace: str, name: str, *, uid: str, resource_version: str | None = None
    ) -> None:
        """Background deletion of the object with this UID; one that is gone or has another UID is no error.

        Raises ConflictError where `resource_version` is given and the object changed.
        """
        preconditions = {"uid": uid} | ({"resourceVersion": resource_version} if resource_version else {})
        body = {"propagationPolicy": "Background", "preconditions": preconditions}
        try:
            await self._send("DELETE", _named(kind, namespace, name), body=body)
        except NotFoundError:
            return
        except ConflictError:
            if resource_version:
                raise

    async def scale(self, kind: str, namespace: str, name: str, replicas: int) -> Manifest:
        """Write the scale subresource; returns the Scale, whose resource version is the object's."""
        body = {"spec": {"replicas": replicas}}
        return await self._send("PATCH", _named(kind, namespace, name), body=body, content=_MERGE, subresource="scale")

    async def set_finalizers(self, body: Manifest, finalizers: list[str]) -> Manifest:
        """Set all finalizers of the object as it was read; raises ConflictError where it changed since.

        Not by server-side apply: the server answers 504 to an apply that takes the last finalizer off.
        """
        version = body["metadata"]["resourceVersion"]
        change = {"metadata": {"finalizers": finalizers, "resourceVersion": version}}
        return await self._send("PATCH", body, body=change, query={"fieldManager": OPERATOR}, content=_MERGE)

    async def set_pod_condition(self, namespace: str, pod: str, uid: str, condition: Manifest) -> None:
        """Set one condition of exactly this pod; the kubelet's and others' conditions are merged by type."""
        body = {"metadata": {"uid": uid}, "status": {"conditions": [condition]}}
        target = _named("Pod", namespace, pod)
        await self._send("PATCH", target, body=body, content=_STRATEGIC, subresource="status")

    async def write_status(self, kind: str, namespace: str, name: str, uid: str, status: Manifest) -> Manifest:
        """Replace the status by server-side apply; the UID keeps it from a namesake made meanwhile."""
        body = {**_named(kind, namespace, name), "status": status}
        body["metadata"] = {**body["metadata"], "uid": uid}
        query = {"fieldManager": f"{OPERATOR}-status", "force": "true"}
        return await self._send("PATCH", body, body=body, query=query, content=_APPLY, subresource="status")

    async def _send(
        self,
        method: str,
        target: Manifest,
        *,
        body: Manifest | None = None,
        query: dict[str, str] | None = None,
        content: str = "application/json",
        subresource: str | None = None,
        collection: bool = False,
    ) -> Manifest:
        kind, metadata = KINDS[target["kind"]], target["metadata"]
        name = None if collection else metadata["name"]
        path = kind.path(metadata.get("namespace"), name, subresource)
        return await self._request(method, path, kind.kind, body=body, query=query, content=content)

    async def _request(
        self,
        method: str,
        path: str,
        kind: str,
        *,
        body: Manifest | None = None,
        query: dict[str, str] | None = None,
        content: str = "application/json",
    ) -> Manifest:
        request = await self._client.param_serialize(
            method,
            path,
            query_params=list((query or {}).items()),
            header_params={"Accept": "application/json", "Content-Type": content},
            body=body,
            auth_settings=["BearerToken"],
        )
        began = time.monotonic()
        code = 0
        try:
            async with self._slots:
                response = await self._client.call_api(*request, _request_timeout=REQUEST_SECONDS)
                code = response.status
                text = (await response.read()).decode()
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise ApiError(0, f"{method} {path}: {type(error).__name__} {error}") from error
        finally:
            API_REQUESTS.labels(verb=method, kind=kind, code=str(code)).inc()
            API_SECONDS.labels(verb=method).observe(time.monotonic() - began)
        if code >= 400:
            raise _error(code, f"{method} {path}", text, response.headers.get("Retry-After"))
        return dict(json.loads(text))


def _named(kind: str, namespace: str, name: str) -> Manifest:
    known = KINDS[kind]
    return {"apiVersion": known.api_version, "kind": kind, "metadata": {"name": name, "namespace": namespace}}


def _error(code: int, what: str, text: str, retry_after: str | None) -> ApiError:
    try:
        message = str(json.loads(text).get("message", text))
    except ValueError:
        message = text
    sentence = f"{what}: {code} {message[:500]}"
    if code == 409:
        return ConflictError(code, sentence)
    if code == 404:
        return NotFoundError(code, sentence)
    if code in (400, 403, 405, 413, 415, 422) or _SCHEMA_FAULT in message:
        return InvalidError(code, sentence)
    wait = float(retry_after) if retry_after and retry_after.isdigit() else None
    return ApiError(code, sentence, wait)

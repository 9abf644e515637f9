"""A small asynchronous Kubernetes client for tests: JSON in, JSON out, nothing hidden.

It is deliberately not the operator's own adapter, so that a mistake there cannot hide itself here.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import yaml

Object = dict[str, Any]


class KubeError(Exception):
    """An answer of the API server with status 400 or above; `code`, `reason` and `body` hold it."""

    def __init__(self, method: str, url: str, code: int, body: str) -> None:
        try:
            status = json.loads(body)
        except ValueError:
            status = {}
        self.code = code
        self.reason: str = status.get("reason", "")
        self.body = body
        super().__init__(f"{method} {url}: {code} {status.get('message') or body[:300]}")


def resource_path(api_version: str, plural: str, namespace: str | None = None, name: str | None = None) -> str:
    """The URL path of a collection or object: `("apps/v1", "deployments", "ns", "x")`."""
    root = f"/api/{api_version}" if "/" not in api_version else f"/apis/{api_version}"
    parts = [root]
    if namespace is not None:
        parts += ["namespaces", namespace]
    parts.append(plural)
    if name is not None:
        parts.append(name)
    return "/".join(parts)


def plural_of(kind: str) -> str:
    """The lower-case plural of a kind by the English rules that all kinds used here follow."""
    lower = kind.lower()
    if lower.endswith(("s", "x", "ch")):
        return lower + "es"
    if lower.endswith("y") and lower[-2] not in "aeiou":
        return lower[:-1] + "ies"
    return lower + "s"


class Kube:
    """One connection pool to one API server. Use as an async context manager."""

    def __init__(self, kubeconfig: Path, *, timeout: float = 30.0) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        cluster = config["clusters"][0]["cluster"]
        user = config["users"][0]["user"]
        context = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
        headers = {}
        if "token" in user:
            headers["Authorization"] = f"Bearer {user['token']}"
        else:
            with tempfile.NamedTemporaryFile() as pem:
                pem.write(base64.b64decode(user["client-certificate-data"]))
                pem.write(b"\n")
                pem.write(base64.b64decode(user["client-key-data"]))
                pem.flush()
                context.load_cert_chain(pem.name)
        self.server: str = cluster["server"]
        self._http = httpx.AsyncClient(
            base_url=self.server, verify=context, headers=headers, timeout=timeout, trust_env=False
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: dict[str, Any] | None = None,
        body: Any = None,
        content_type: str = "application/json",
    ) -> Object:
        """Send one request; raises KubeError on status 400 and above."""
        response = await self._http.request(
            method,
            path,
            params=params,
            content=None if body is None else json.dumps(body),
            headers={"Content-Type": content_type} if body is not None else None,
        )
        if response.status_code >= 400:
            raise KubeError(method, path, response.status_code, response.text)
        if response.headers.get("content-type", "").startswith("application/json"):
            return dict(response.json())
        return {"text": response.text}

    async def get(self, api_version: str, plural: str, name: str, namespace: str | None = None) -> Object:
        return await self.request("GET", resource_path(api_version, plural, namespace, name))

    async def find(self, api_version: str, plural: str, name: str, namespace: str | None = None) -> Object | None:
        """As `get`, but None where the object does not exist."""
        try:
            return await self.get(api_version, plural, name, namespace)
        except KubeError as error:
            if error.code == 404:
                return None
            raise

    async def list(
        self, api_version: str, plural: str, namespace: str | None = None, selector: str | None = None
    ) -> list[Object]:
        params = {"labelSelector": selector} if selector else None
        answer = await self.request("GET", resource_path(api_version, plural, namespace), params=params)
        return list(answer["items"])

    async def create(self, body: Object, plural: str | None = None, **params: Any) -> Object:
        namespace = body["metadata"].get("namespace")
        path = resource_path(body["apiVersion"], plural or plural_of(body["kind"]), namespace)
        return await self.request("POST", path, body=body, params=params or None)

    async def apply(
        self,
        body: Object,
        plural: str | None = None,
        *,
        manager: str = "harness",
        force: bool = True,
        subresource: str = "",
    ) -> Object:
        """Server-side apply."""
        meta = body["metadata"]
        path = resource_path(body["apiVersion"], plural or plural_of(body["kind"]), meta.get("namespace"), meta["name"])
        if subresource:
            path += "/" + subresource
        return await self.request(
            "PATCH",
            path,
            body=body,
            params={"fieldManager": manager, "force": "true" if force else "false", "fieldValidation": "Strict"},
            content_type="application/apply-patch+yaml",
        )

    async def patch(
        self,
        api_version: str,
        plural: str,
        name: str,
        body: Object,
        namespace: str | None = None,
        *,
        subresource: str = "",
        strategic: bool = False,
    ) -> Object:
        """Merge patch (strategic where asked for)."""
        path = resource_path(api_version, plural, namespace, name) + (f"/{subresource}" if subresource else "")
        kind = "application/strategic-merge-patch+json" if strategic else "application/merge-patch+json"
        return await self.request("PATCH", path, body=body, content_type=kind)

    async def delete(
        self,
        api_version: str,
        plural: str,
        name: str,
        namespace: str | None = None,
        *,
        propagation: str = "Background",
        grace: int | None = None,
        uid: str | None = None,
    ) -> None:
        """Delete; an object that is already gone is no error."""
        body: Object = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": propagation}
        if grace is not None:
            body["gracePeriodSeconds"] = grace
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        try:
            await self.request("DELETE", resource_path(api_version, plural, namespace, name), body=body)
        except KubeError as error:
            if error.code != 404:
                raise

    async def watch(
        self,
        api_version: str,
        plural: str,
        namespace: str | None = None,
        *,
        selector: str | None = None,
        resource_version: str | None = None,
    ) -> AsyncIterator[tuple[str, Object]]:
        """Yield (event type, object) until the server ends the watch."""
        params: dict[str, str] = {"watch": "true", "allowWatchBookmarks": "true"}
        if selector:
            params["labelSelector"] = selector
        if resource_version:
            params["resourceVersion"] = resource_version
        path = resource_path(api_version, plural, namespace)
        timeout = httpx.Timeout(10.0, read=None)
        async with self._http.stream("GET", path, params=params, timeout=timeout) as response:
            if response.status_code >= 400:
                raise KubeError("WATCH", path, response.status_code, (await response.aread()).decode())
            async for line in response.aiter_lines():
                event = json.loads(line)
                yield event["type"], event["object"]


async def eventually(check: Callable[[], Any], *, seconds: float = 30.0, what: str = "", every: float = 0.1) -> Any:
    """Call `check` (plain or coroutine function) until its result is true; return it.

    An AssertionError or KubeError inside `check` counts as "not yet" and is shown when the deadline passes.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    last: Any = None
    while True:
        try:
            result = check()
            if asyncio.iscoroutine(result):
                result = await result
            if result:
                return result
            last = result
        except (AssertionError, KubeError) as error:
            last = error
        if loop.time() > deadline:
            raise AssertionError(f"not within {seconds} s: {what or check}: last {last!r}")
        await asyncio.sleep(every)

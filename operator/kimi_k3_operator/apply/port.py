"""The API server as the operator sees it: few verbs, typed errors. `kube.py` is the real one, tests have others."""

from __future__ import annotations

from typing import Protocol

from kimi_k3_operator.api.base import Manifest
from kimi_k3_operator.errors import KimiK3Error


class ApiError(KimiK3Error):
    """The API server refused, or could not be reached. `status` is the HTTP status, 0 where there was no answer."""

    def __init__(self, status: int, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


class ConflictError(ApiError):
    """409: somebody else owns a field, the object changed, or it exists already."""


class NotFoundError(ApiError):
    """404: the object or its API is not there."""


class InvalidError(ApiError):
    """400, 403, 422, or a body that does not fit the schema: the same request will fail again."""


class KubeApi(Protocol):
    """Objects are named by kind, namespace and name; a kind must be in `kinds.KINDS`."""

    async def apply(self, manifest: Manifest, *, force: bool) -> Manifest: ...

    async def create(self, manifest: Manifest) -> Manifest: ...

    async def get(self, kind: str, namespace: str, name: str) -> Manifest: ...

    async def select(self, kind: str, namespace: str, selector: str) -> list[Manifest]: ...

    async def serves(self, kind: str) -> bool: ...

    async def replace(self, manifest: Manifest) -> Manifest: ...

    async def delete(
        self, kind: str, namespace: str, name: str, *, uid: str, resource_version: str | None = None
    ) -> None: ...

    async def scale(self, kind: str, namespace: str, name: str, replicas: int) -> Manifest: ...

    async def set_finalizers(self, body: Manifest, finalizers: list[str]) -> Manifest: ...

    async def set_pod_condition(self, namespace: str, pod: str, uid: str, condition: Manifest) -> None: ...

    async def write_status(self, kind: str, namespace: str, name: str, uid: str, status: Manifest) -> Manifest: ...

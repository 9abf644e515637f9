"""The planning Lease: of all operator instances of a cluster one plans NVLink domains.

Its holder writes the namespaces it serves beside it. An instance without the Lease stands by where the holder serves
its namespaces, and otherwise serves everything but the placing of groups.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from kimi_k3_operator.api.base import GROUP, Manifest
from kimi_k3_operator.api.labels import deployment_labels
from kimi_k3_operator.apply.port import ApiError, ConflictError, KubeApi, NotFoundError
from kimi_k3_operator.metrics import PLANNING

LEASE_NAME = "kimi-k3-operator-planner"
LEASE_SECONDS = 15
RENEW_SECONDS = 5.0
_DEADLINE_SECONDS = 10.0
"""An instance that could not renew for so long stops planning, before the Lease can be taken from it."""
_SCOPE = f"{GROUP}/scope"
_TIME = "%Y-%m-%dT%H:%M:%S.%fZ"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Standing:
    """`planned_by`: empty where this instance plans. `stand_by`: the holder serves our namespaces; do nothing."""

    planned_by: str
    stand_by: bool


class PlanningLease:
    """Acquires and renews; `standing` is what passes go by. Times are seconds of the event loop's clock."""

    def __init__(self, api: KubeApi, *, namespace: str, identity: str, scope: str, changed: Callable[[], None]) -> None:
        self._api = api
        self._namespace, self._identity, self._scope = namespace, identity, scope
        self._changed = changed
        self._standing = Standing("nobody yet", stand_by=True)
        self._renewed = float("-inf")
        self._seen = ("", float("-inf"))
        """The holder's last renewal as it wrote it, and when we first saw it: clocks of machines differ."""
        self.answered = float("-inf")
        """When the API server last answered."""

    @property
    def standing(self) -> Standing:
        if not self._standing.planned_by and asyncio.get_running_loop().time() - self._renewed > _DEADLINE_SECONDS:
            return Standing("nobody for sure: the planning Lease could not be renewed", stand_by=False)
        return self._standing

    async def run(self) -> None:
        """Until cancelled; then the Lease is given back."""
        try:
            while True:
                try:
                    await self._try()
                    self.answered = asyncio.get_running_loop().time()
                except ApiError as error:
                    log.warning("the planning Lease could not be renewed: %s", error)
                await asyncio.sleep(RENEW_SECONDS)
        finally:
            await asyncio.shield(self._give_back())

    async def _try(self) -> None:
        now, began = datetime.now(UTC), asyncio.get_running_loop().time()
        try:
            lease = await self._api.get("Lease", self._namespace, LEASE_NAME)
        except NotFoundError:
            await self._take(None, now, began)
            return
        spec = lease.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        renewal = f"{holder} {spec.get('renewTime', '')}"
        if renewal != self._seen[0]:
            self._seen = (renewal, began)
        expired = began - self._seen[1] > int(spec.get("leaseDurationSeconds", LEASE_SECONDS))
        if holder in ("", self._identity) or expired:
            await self._take(lease, now, began)
        else:
            scope = str((lease["metadata"].get("annotations") or {}).get(_SCOPE, "*"))
            self._stand(Standing(f"operator {holder}", stand_by=_overlap(scope, self._scope)))

    async def _take(self, lease: Manifest | None, now: datetime, began: float) -> None:
        """`began` is `now` on the event loop's clock: the Lease runs from then, however late the answer comes."""
        body = self._body(lease, now)
        try:
            await (self._api.create(body) if lease is None else self._api.replace(body))
        except ConflictError:
            return  # somebody was faster; the next round sees who
        lapsed = not self._standing.planned_by and self.standing.planned_by
        self._renewed = began
        self._stand(Standing("", stand_by=False))
        if lapsed:
            self._changed()  # passes that found nobody planning look again

    def _body(self, lease: Manifest | None, now: datetime) -> Manifest:
        old = (lease or {}).get("spec") or {}
        mine = old.get("holderIdentity") == self._identity
        metadata = {
            "name": LEASE_NAME,
            "namespace": self._namespace,
            "labels": {k: v for k, v in deployment_labels("").items() if v and not k.startswith(GROUP)},
            "annotations": {_SCOPE: self._scope},
        }
        if lease is not None:
            metadata["resourceVersion"] = lease["metadata"]["resourceVersion"]
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": {
                "holderIdentity": self._identity,
                "leaseDurationSeconds": LEASE_SECONDS,
                "acquireTime": old["acquireTime"] if mine and "acquireTime" in old else now.strftime(_TIME),
                "renewTime": now.strftime(_TIME),
                "leaseTransitions": int(old.get("leaseTransitions", 0)) + (0 if mine else 1),
            },
        }

    async def _give_back(self) -> None:
        if self._standing.planned_by:
            return
        try:
            lease = await self._api.get("Lease", self._namespace, LEASE_NAME)
            if lease["spec"].get("holderIdentity") == self._identity:
                await self._api.replace({**lease, "spec": {**lease["spec"], "holderIdentity": ""}})
        except ApiError as error:
            log.warning("the planning Lease was not given back and runs out by itself: %s", error)

    def _stand(self, standing: Standing) -> None:
        if standing == self._standing:
            return
        self._standing = standing
        PLANNING.set(0 if standing.planned_by else 1)
        if not standing.planned_by:
            log.info("this instance plans the cluster's NVLink domains")
        elif standing.stand_by:
            log.warning("%s serves these namespaces: this instance stands by and changes nothing", standing.planned_by)
        else:
            log.warning("%s plans the cluster's NVLink domains: this instance places no group", standing.planned_by)
        self._changed()


def _overlap(first: str, second: str) -> bool:
    """Two scopes, each `*` or namespaces by comma, have a namespace in common."""
    if "*" in (first, second):
        return True
    return bool(set(first.split(",")) & set(second.split(",")))

"""A stand-in for the LeaderWorkerSet controller, v0.10, without its Go program.

What it does as the real one: names, labels, annotations, environment and owner references of everything it makes;
group recreation without back-off or limit; template revisions; rolling update from the highest index; startup policies;
status with omitted zeros. What differs:

* The webhooks are admission policies in the API server (`leaderworkerset_admission`). They stay in force while this
  controller is down, so a write to a LeaderWorkerSet never fails for that reason, and the group key of a leader comes
  as an update. Defaults of the webhook are assumed, not stored.
* maxSurge is taken as 0; subGroupPolicy and exclusive-topology are ignored.
* A rollback finds its old revision and does not renumber it.
* A rollout does not step past groups of the old template that were down before it began.
"""

from __future__ import annotations

import logging

from tests.harness import leaderworkerset_admission as admission
from tests.harness.controller import Controller, Key, Source, keyed_by_label, own_key, rfc3339
from tests.harness.kube import Kube, KubeError, Object, plural_of
from tests.harness.leaderworkerset_admission import GROUP_INDEX, NAME
from tests.harness.leaderworkerset_objects import API_VERSION
from tests.harness.leaderworkerset_plan import Observed, Plan, Recreation, plan

log = logging.getLogger(__name__)

_by_name = keyed_by_label(NAME)


class FakeLeaderWorkerSetController(Controller):
    """Acts on all LeaderWorkerSets of a cluster until `run` is cancelled."""

    sources = (
        Source(API_VERSION, "leaderworkersets", own_key),
        Source("apps/v1", "statefulsets", _by_name, selector=NAME),
        Source("apps/v1", "controllerrevisions", _by_name, selector=NAME),
        Source("v1", "services", _by_name, selector=NAME),
        Source("v1", "pods", _by_name, selector=NAME),
    )

    async def prepare(self, kube: Kube) -> None:
        await admission.install(kube)

    async def reconcile(self, kube: Kube, key: Key) -> None:
        pods = self.mirror("pods")
        departed = pods.departed(key)
        lws = self.mirror("leaderworkersets").get(key)
        if lws is not None:
            seen = Observed(
                lws,
                sets=self.mirror("statefulsets").of(key),
                pods=pods.of(key),
                departed=departed,
                revisions=self.mirror("controllerrevisions").of(key),
                services=self.mirror("services").of(key),
            )
            await self._execute(kube, lws, plan(seen, now=rfc3339()))
        pods.forget(key, departed)

    async def _execute(self, kube: Kube, lws: Object, todo: Plan) -> None:
        namespace = lws["metadata"]["namespace"]
        for body in todo.create:
            await self._create(kube, lws, body)
        for body in todo.apply:
            try:
                await kube.apply(body, manager="lws")
            except KubeError as error:
                await self._report_refusal(kube, lws, body, error)
                raise
        for pod, labels in todo.label:
            patch = {"metadata": {"uid": pod["metadata"]["uid"], "labels": labels}}
            try:
                await kube.patch("v1", "pods", pod["metadata"]["name"], patch, namespace)
            except KubeError as error:
                if error.code not in (404, 409):
                    raise
        for recreation in todo.recreate:
            await self._recreate(kube, lws, recreation)
        for revision in todo.prune:
            meta = revision["metadata"]
            await kube.delete("apps/v1", "controllerrevisions", meta["name"], namespace, uid=meta["uid"])
        if todo.status is not None and todo.status != lws.get("status"):
            await self._write_status(kube, lws, todo.status)

    async def _create(self, kube: Kube, lws: Object, body: Object) -> None:
        try:
            await kube.create(body)
        except KubeError as error:
            if error.reason == "AlreadyExists":
                return
            await self._report_refusal(kube, lws, body, error)
            raise

    async def _recreate(self, kube: Kube, lws: Object, recreation: Recreation) -> None:
        leader, blame = recreation.leader["metadata"], recreation.blame["metadata"]
        try:
            await kube.delete(
                "v1", "pods", leader["name"], leader["namespace"], propagation="Foreground", uid=leader["uid"]
            )
        except KubeError as error:
            if error.code != 409:
                raise
            return
        group = leader["labels"].get(GROUP_INDEX)
        message = f"Worker pod {blame['name']} failed, deleted leader pod {leader['name']} to recreate group {group}"
        await self._record(kube, lws, "Normal", "RecreateGroup", message)

    async def _write_status(self, kube: Kube, lws: Object, status: Object) -> None:
        absent = dict.fromkeys(lws.get("status", {}).keys() - status.keys())
        meta = lws["metadata"]
        patch = {"metadata": {"uid": meta["uid"]}, "status": {**absent, **status}}
        try:
            await kube.patch(
                API_VERSION, "leaderworkersets", meta["name"], patch, meta["namespace"], subresource="status"
            )
        except KubeError as error:
            if error.code not in (404, 409):
                raise

    async def _report_refusal(self, kube: Kube, lws: Object, body: Object, error: KubeError) -> None:
        if error.code in (400, 403, 422):
            what = f"{plural_of(body['kind'])} {body['metadata']['name']}: {error}"
            await self._record(kube, lws, "Warning", "FailedCreate", what[:1000])

    async def _record(self, kube: Kube, lws: Object, kind: str, reason: str, message: str) -> None:
        meta, now = lws["metadata"], rfc3339()
        event: Object = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": meta["name"] + ".", "namespace": meta["namespace"]},
            "involvedObject": {
                "apiVersion": API_VERSION,
                "kind": "LeaderWorkerSet",
                "name": meta["name"],
                "namespace": meta["namespace"],
                "uid": meta["uid"],
            },
            "type": kind,
            "reason": reason,
            "message": message,
            "source": {"component": "leaderworkerset"},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            await kube.create(event)
        except KubeError as error:
            log.info("event %s of %s not recorded: %s", reason, meta["name"], error)

"""The objects that the LeaderWorkerSet controller makes, one pure builder each."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from tests.harness.kube import Object
from tests.harness.leaderworkerset_admission import (
    GROUP_INDEX,
    LEADER_NAME,
    NAME,
    PREFIX,
    SIZE,
    SUBDOMAIN_POLICY,
    WORKER_INDEX,
)

API_VERSION = "leaderworkerset.x-k8s.io/v1"
REVISION = PREFIX + "template-revision-hash"
GROUP_KEY = PREFIX + "group-key"
REPLICAS = PREFIX + "replicas"

UNIQUE = "UniquePerReplica"


def revision_content(lws: Object) -> Object:
    """What a revision holds: the whole leaderWorkerTemplate and networkConfig, with the webhook's defaults.

    It shares its inner parts with `lws`: builders here never change what they are given.
    """
    template = dict(lws["spec"]["leaderWorkerTemplate"])
    policy = template.get("restartPolicy") or "RecreateGroupOnPodRestart"
    template["restartPolicy"] = "None" if policy == "Default" else policy
    template.setdefault("size", 1)
    network = lws["spec"].get("networkConfig") or {"subdomainPolicy": "Shared"}
    return {"spec": {"leaderWorkerTemplate": template, "networkConfig": network}}


def revision_hash(content: Object) -> str:
    """Ten hexadecimal digits; equal for equal content."""
    return hashlib.sha1(json.dumps(content, sort_keys=True).encode()).hexdigest()[:10]


def group_key(namespace: str, leader: str) -> str:
    return hashlib.sha1(f"{namespace}/{leader}".encode()).hexdigest()


def owned_by(owner: Object, api_version: str, kind: str) -> list[Object]:
    """The controller reference to an owner, which holds up the owner's foreground deletion."""
    return [
        {
            "apiVersion": api_version,
            "kind": kind,
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]


def controller_revision(lws: Object, content: Object, *, number: int) -> Object:
    """The ControllerRevision of a template."""
    meta = lws["metadata"]
    digest = revision_hash(content)
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            "name": f"{meta['name']}-{digest}-{number}",
            "namespace": meta["namespace"],
            "labels": {NAME: meta["name"], REVISION: digest},
            "ownerReferences": owned_by(lws, API_VERSION, "LeaderWorkerSet"),
        },
        "data": content,
        "revision": number,
    }


def headless_service(lws: Object, *, name: str, selector: dict[str, str], owner: list[Object]) -> Object:
    """A Service without ports that also names pods that are not Ready, for the rendezvous."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": name,
            "namespace": lws["metadata"]["namespace"],
            "labels": {NAME: lws["metadata"]["name"]},
            "ownerReferences": owner,
        },
        "spec": {"clusterIP": "None", "selector": selector, "publishNotReadyAddresses": True},
    }


def leader_set(lws: Object, content: Object, digest: str, *, partition: int, max_unavailable: int) -> Object:
    """The StatefulSet of all leaders; `content` and `digest` are those of the present template."""
    meta, name = lws["metadata"], lws["metadata"]["name"]
    group = content["spec"]["leaderWorkerTemplate"]
    replicas = lws["spec"].get("replicas", 1)
    annotations = {SIZE: str(group["size"])}
    if content["spec"]["networkConfig"]["subdomainPolicy"] == UNIQUE:
        annotations[SUBDOMAIN_POLICY] = UNIQUE
    template = _pod_template(
        group.get("leaderTemplate") or group["workerTemplate"],
        labels={NAME: name, WORKER_INDEX: "0", REVISION: digest},
        annotations=annotations,
    )
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {
            "name": name,
            "namespace": meta["namespace"],
            "labels": {**meta.get("labels", {}), NAME: name, REVISION: digest},
            "annotations": {**meta.get("annotations", {}), REPLICAS: str(replicas)},
            "ownerReferences": owned_by(lws, API_VERSION, "LeaderWorkerSet"),
        },
        "spec": {
            "replicas": replicas,
            "serviceName": name,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": {NAME: name, WORKER_INDEX: "0"}},
            "updateStrategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"partition": partition, "maxUnavailable": max_unavailable},
            },
            "template": template,
            **_volume_claims(group),
        },
    }


def worker_set(lws: Object, leader: Object, content: Object) -> Object:
    """The StatefulSet of one group's workers, from the revision that the leader was made of."""
    meta, name, leader_name = lws["metadata"], lws["metadata"]["name"], leader["metadata"]["name"]
    group = content["spec"]["leaderWorkerTemplate"]
    unique = content["spec"]["networkConfig"]["subdomainPolicy"] == UNIQUE
    selector = {
        NAME: name,
        GROUP_INDEX: leader_name.rpartition("-")[2],
        GROUP_KEY: group_key(meta["namespace"], leader_name),
    }
    labels = {**selector, REVISION: leader["metadata"]["labels"][REVISION]}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {
            "name": leader_name,
            "namespace": meta["namespace"],
            "labels": {**meta.get("labels", {}), **labels},
            "ownerReferences": owned_by(leader, "v1", "Pod"),
        },
        "spec": {
            "replicas": group["size"] - 1,
            "serviceName": leader_name if unique else name,
            "podManagementPolicy": "Parallel",
            "ordinals": {"start": 1},
            "selector": {"matchLabels": selector},
            "template": _pod_template(
                group["workerTemplate"],
                labels=labels,
                annotations={SIZE: str(group["size"]), LEADER_NAME: leader_name},
            ),
            **_volume_claims(group),
        },
    }


def _pod_template(template: Object, *, labels: dict[str, str], annotations: dict[str, str]) -> Object:
    own: dict[str, Any] = template.get("metadata") or {}
    return {
        "metadata": {
            "labels": {**(own.get("labels") or {}), **labels},
            "annotations": {**(own.get("annotations") or {}), **annotations},
        },
        "spec": template["spec"],
    }


def _volume_claims(group: Object) -> Object:
    names = ("volumeClaimTemplates", "persistentVolumeClaimRetentionPolicy")
    return {name: group[name] for name in names if group.get(name)}

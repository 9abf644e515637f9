"""A stand-in for NVIDIA's ComputeDomain driver: its controller and the part of its node plugin that the API shows.

Per node with a clique label it publishes one IMEX channel and one daemon device, so the real scheduler gives a node to
one channel claim at a time. Per ComputeDomain it makes the channel's ResourceClaimTemplate and keeps the status. A node
whose channel is allocated to a pod carries the domain's uid as label, as the node plugin does in Prepare.

What differs: there are no IMEX daemons, so no DaemonSet, no ComputeDomainClique objects and no start that waits for a
daemon; a node counts as Ready as soon as its claim is reserved for a pod. A terminating domain waits for its claims.
Node labels that neither this controller wrote nor a known domain explains are left alone, for tests that set them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tests.harness.controller import Controller, Key, Source, key_of, own_key
from tests.harness.kube import Kube, KubeError, Object

API_VERSION = "resource.nvidia.com/v1beta1"
DRA = "resource.k8s.io/v1"
DRIVER = "compute-domain.nvidia.com"
CLIQUE = "nvidia.com/gpu.clique"
DOMAIN = "resource.nvidia.com/computeDomain"
FINALIZER = DOMAIN
TARGET = "resource.nvidia.com/computeDomainTarget"
CHANNEL_CLASS = "compute-domain-default-channel.nvidia.com"
DAEMON_CLASS = "compute-domain-daemon.nvidia.com"


def device_class(name: str, kind: str) -> Object:
    """The class of all devices with number 0 of a kind ("channel" or "daemon")."""
    attributes = f"device.attributes['{DRIVER}']"
    rule = f"device.driver == '{DRIVER}' && {attributes}.type == '{kind}' && {attributes}.id == 0"
    return {
        "apiVersion": DRA,
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": rule}}]},
    }


def resource_slice(node: Object) -> Object:
    """What the node plugin publishes for one node; deleted with the node."""
    meta = node["metadata"]
    return {
        "apiVersion": DRA,
        "kind": "ResourceSlice",
        "metadata": {
            "name": f"{meta['name']}-{DRIVER}",
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": meta["name"], "uid": meta["uid"], "controller": True}
            ],
        },
        "spec": {
            "driver": DRIVER,
            "nodeName": meta["name"],
            "pool": {"name": meta["name"], "generation": 1, "resourceSliceCount": 1},
            "devices": [
                {"name": f"{kind}-0", "attributes": {"type": {"string": kind}, "id": {"int": 0}}}
                for kind in ("channel", "daemon")
            ],
        },
    }


def channel_template(domain: Object) -> Object:
    """The ResourceClaimTemplate that pods of a domain name; it ties a claim to the domain by an opaque config.

    Create it by server-side apply: the API server keeps the parameters as bytes, and after a plain create from JSON
    with blanks in it every later write of the object is refused as a change of the immutable spec.
    """
    meta, channel = domain["metadata"], domain["spec"]["channel"]
    config = {
        "apiVersion": API_VERSION,
        "kind": "ComputeDomainChannelConfig",
        "domainID": meta["uid"],
        "allocationMode": channel.get("allocationMode", "Single"),
    }
    return {
        "apiVersion": DRA,
        "kind": "ResourceClaimTemplate",
        "metadata": {
            "name": channel["resourceClaimTemplate"]["name"],
            "namespace": meta["namespace"],
            "finalizers": [FINALIZER],
            "labels": {DOMAIN: meta["uid"], TARGET: "Workload"},
        },
        "spec": {
            "spec": {
                "devices": {
                    "requests": [{"name": "channel", "exactly": {"deviceClassName": CHANNEL_CLASS}}],
                    "config": [{"requests": ["channel"], "opaque": {"driver": DRIVER, "parameters": config}}],
                }
            }
        },
    }


def domain_of(claim: Object) -> str | None:
    """The uid of the domain that a claim is for; None for the claims of other drivers."""
    for config in claim["spec"].get("devices", {}).get("config", []):
        opaque = config.get("opaque", {})
        if opaque.get("driver") == DRIVER:
            uid: str | None = opaque.get("parameters", {}).get("domainID")
            return uid
    return None


def node_of(claim: Object) -> str | None:
    """The node whose channel a claim holds for a pod; None while it is not both allocated and reserved."""
    state = claim.get("status", {})
    if state.get("reservedFor"):
        for result in state.get("allocation", {}).get("devices", {}).get("results", []):
            if result["driver"] == DRIVER:
                return str(result["pool"])
    return None


def domain_status(domain: Object, claims: Sequence[Object], nodes: Mapping[str, Object]) -> Object:
    """The status of a domain whose daemons start at once; a node keeps its index within its clique."""
    before = {entry["name"]: entry for entry in domain.get("status", {}).get("nodes", [])}
    used = {name for claim in claims if (name := node_of(claim)) is not None and name in nodes}
    entries: list[Object] = []
    for name in sorted(used, key=lambda name: (name not in before, name)):
        clique = nodes[name]["metadata"].get("labels", {}).get(CLIQUE, "")
        taken = {entry["index"] for entry in entries if entry["cliqueID"] == clique}
        index = before.get(name, {}).get("index", -1)
        if index < 0 or index in taken:
            index = next(number for number in range(len(taken) + 1) if number not in taken)
        addresses = nodes[name].get("status", {}).get("addresses", [])
        entries.append(
            {
                "name": name,
                "ipAddress": next((one["address"] for one in addresses if one["type"] == "InternalIP"), ""),
                "cliqueID": clique,
                "index": index,
                "status": "Ready",
            }
        )
    ready = len(entries) >= domain["spec"].get("numNodes", 0)
    status: Object = {"status": "Ready" if ready else "NotReady"}
    if entries:
        status["nodes"] = entries
    return status


def _domain_key(domain: Object) -> list[Key]:
    return [(domain["metadata"]["namespace"], domain["metadata"]["uid"])]


def _template_key(template: Object) -> list[Key]:
    return [(template["metadata"]["namespace"], template["metadata"]["labels"][DOMAIN])]


def _slice_key(published: Object) -> list[Key]:
    spec = published["spec"]
    return [("", spec["nodeName"])] if spec["driver"] == DRIVER and "nodeName" in spec else []


def _claim_keys(claim: Object) -> Iterable[Key]:
    if uid := domain_of(claim):
        yield claim["metadata"]["namespace"], uid
        if name := node_of(claim):
            yield "", name


class FakeComputeDomainController(Controller):
    """Acts on all ComputeDomains and GPU nodes of a cluster until `run` is cancelled.

    Reconcile keys are (namespace, uid of a domain) and ("", name of a node).
    """

    sources = (
        Source(API_VERSION, "computedomains", _domain_key),
        Source("v1", "nodes", own_key),
        Source(DRA, "resourceslices", _slice_key),
        Source(DRA, "resourceclaimtemplates", _template_key, selector=f"{DOMAIN},{TARGET}=Workload"),
        Source(DRA, "resourceclaims", _claim_keys),
    )

    async def prepare(self, kube: Kube) -> None:
        self._labelled: dict[str, str] = {}
        await kube.apply(device_class(CHANNEL_CLASS, "channel"))
        await kube.apply(device_class(DAEMON_CLASS, "daemon"))

    async def reconcile(self, kube: Kube, key: Key) -> None:
        namespace, name = key
        if not namespace:
            await self._reconcile_node(kube, name)
            return
        domains = self.mirror("computedomains").of(key)
        if not domains or "deletionTimestamp" in domains[0]["metadata"]:
            await self._remove_template(kube, key)
        for domain in domains:
            if "deletionTimestamp" in domain["metadata"]:
                await self._release(kube, domain, key)
            else:
                await self._provide(kube, domain, key)

    async def _provide(self, kube: Kube, domain: Object, key: Key) -> None:
        meta = domain["metadata"]
        finalizers = meta.get("finalizers", [])
        if FINALIZER not in finalizers:
            await self._set_finalizers(kube, API_VERSION, "computedomains", domain, [*finalizers, FINALIZER])
        if not self.mirror("resourceclaimtemplates").of(key):
            await kube.apply(channel_template(domain), manager="compute-domain-controller", force=False)
        claims = self.mirror("resourceclaims").of(key)
        names = {name for claim in claims if (name := node_of(claim)) is not None}
        nodes = {name: node for name in names if (node := self.mirror("nodes").get(("", name))) is not None}
        status = domain_status(domain, claims, nodes)
        if status != domain.get("status"):
            patch = {"status": {"nodes": None, **status}}
            await kube.patch(
                API_VERSION, "computedomains", meta["name"], patch, meta["namespace"], subresource="status"
            )

    async def _release(self, kube: Kube, domain: Object, key: Key) -> None:
        finalizers = domain["metadata"].get("finalizers", [])
        held = self.mirror("resourceclaims").of(key) or self.mirror("resourceclaimtemplates").of(key)
        if FINALIZER in finalizers and not held:
            left = [name for name in finalizers if name != FINALIZER]
            await self._set_finalizers(kube, API_VERSION, "computedomains", domain, left)

    async def _remove_template(self, kube: Kube, key: Key) -> None:
        for template in self.mirror("resourceclaimtemplates").of(key):
            meta = template["metadata"]
            if "deletionTimestamp" not in meta:
                await kube.delete(DRA, "resourceclaimtemplates", meta["name"], meta["namespace"], uid=meta["uid"])
            elif FINALIZER in meta.get("finalizers", []):
                left = [name for name in meta["finalizers"] if name != FINALIZER]
                await self._set_finalizers(kube, DRA, "resourceclaimtemplates", template, left)

    async def _reconcile_node(self, kube: Kube, name: str) -> None:
        key = ("", name)
        node = self.mirror("nodes").get(key)
        if node is None or "deletionTimestamp" in node["metadata"]:
            self._labelled.pop(name, None)
            return
        labels = node["metadata"].get("labels", {})
        if CLIQUE in labels and not self.mirror("resourceslices").of(key):
            try:
                await kube.create(resource_slice(node))
            except KubeError as error:
                if error.reason != "AlreadyExists":
                    raise
        present = labels.get(DOMAIN)
        wanted = next((domain_of(claim) for claim in self.mirror("resourceclaims").of(key)), None)
        if present == wanted or (present is not None and not self._explains(name, present)):
            return
        if wanted is None:
            self._labelled.pop(name, None)
        else:
            self._labelled[name] = wanted
        await kube.patch("v1", "nodes", name, {"metadata": {"labels": {DOMAIN: wanted}}})

    def _explains(self, node: str, uid: str) -> bool:
        known = {domain["metadata"]["uid"] for domain in self.mirror("computedomains").all()}
        return uid in known or self._labelled.get(node) == uid

    async def _set_finalizers(
        self, kube: Kube, api_version: str, plural: str, obj: Object, finalizers: list[str]
    ) -> None:
        namespace, name = key_of(obj)
        patch = {"metadata": {"resourceVersion": obj["metadata"]["resourceVersion"], "finalizers": finalizers or None}}
        try:
            await kube.patch(api_version, plural, name, patch, namespace)
        except KubeError as error:
            if error.code != 404:
                raise

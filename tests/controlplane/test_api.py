"""The API as the real server enforces it, and what the operator says of what it cannot accept."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from kimi_k3_operator.api.base import API_VERSION
from kimi_k3_operator.api.crd import crds
from kimi_k3_operator.api.parse import Deployment, parse_deployment
from tests.controlplane.site import DEPLOYMENTS, POOLS, Site, pool, resource
from tests.harness.kube import Kube, KubeError, Object, eventually

CRDS = "customresourcedefinitions"
NAME = "kimik3deployments.kimik3.dev"


async def test_the_server_accepts_both_crds_without_a_schema_condition(kube: Kube) -> None:
    for crd in crds():
        stored = await kube.get("apiextensions.k8s.io/v1", CRDS, crd["metadata"]["name"])
        conditions = {c["type"]: c["status"] for c in stored["status"]["conditions"]}
        assert conditions["Established"] == conditions["NamesAccepted"] == "True"
        assert "NonStructuralSchema" not in conditions


def _with(path: str, value: Any) -> dict[str, Any]:
    """A valid spec with one thing changed: `pools.0.replicas`."""
    body = resource("k3", "x", pool("b300", 1))
    here: Any = body["spec"]
    *parents, last = path.split(".")
    for step in parents:
        here = here[int(step)] if step.isdigit() else here.setdefault(step, {})
    here[last] = value
    return dict(body["spec"])


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "both replicas and autoscaling": (
        _with("pools.0.autoscaling", {"minReplicas": 1, "maxReplicas": 2}),
        "set exactly one of replicas, autoscaling and disaggregation",
    ),
    "two weight sources": (
        _with("weights.persistentVolumeClaim", {"claimName": "kimi-k3"}),
        "set exactly one of persistentVolumeClaim, hostPath and huggingFace",
    ),
    "placeholder text": (_with("weights.hostPath.path", "/<MODEL_DIR>"), "path still holds placeholder text"),
    "pool called prefill": (_with("pools.0.name", "prefill"), "name must not be prefill or decode"),
    "hub without a cache": (_with("weights", {"huggingFace": {}}), "spec.weights.huggingFace.cache"),
    "hub with an empty cache": (
        _with("weights", {"huggingFace": {"cache": {}}}),
        "set exactly one of persistentVolumeClaim and hostPath",
    ),
    "negative replicas": (_with("pools.0.replicas", -1), "spec.pools[0].replicas"),
    "absurd replicas": (_with("pools.0.replicas", 100000), "spec.pools[0].replicas"),
    "nine draft tokens": (_with("pools.0.speculation", {"tokens": 9}), "spec.pools[0].speculation.tokens"),
    "an image without its engine version": (
        _with("pools.0.image", {"reference": "vllm/vllm-openai:nightly"}),
        "spec.pools[0].image.engineVersion",
    ),
    "autoscaling upside down": (
        _with("pools", [pool("b300", autoscaling={"minReplicas": 3, "maxReplicas": 2})]),
        "minReplicas must not be above maxReplicas",
    ),
    "no weights at all": (
        {"pools": [pool("b300", 1)]},
        "weights is missing: set spec.weights, or weights in every pool",
    ),
    "no pool": (_with("pools", []), "spec.pools"),
    "two pools of one name": (_with("pools", [pool("b300", 1), pool("b300", 1)]), "spec.pools[1]"),
    "Kueue without a queue": (_with("placement", {"mode": "Kueue"}), "mode Kueue needs queueName"),
    "an unknown field": (_with("pools.0.replica", 2), 'unknown field "spec.pools[0].replica"'),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
async def test_server_and_python_refuse_the_same_and_name_the_field(kube: Kube, namespace: str, case: str) -> None:
    spec, words = BAD[case]
    body = {**resource("k3", namespace), "spec": copy.deepcopy(spec)}
    with pytest.raises(KubeError) as refused:
        await kube.create(body, DEPLOYMENTS, fieldValidation="Strict")
    assert refused.value.code in (400, 422)
    assert words in str(refused.value)
    parsed = parse_deployment(body)
    assert not isinstance(parsed, Deployment), "the CLI and the operator refuse it as well"


@pytest.mark.parametrize("name", ["K3", "3k", "k3-", "k" * 41])
async def test_a_bad_name_is_refused_in_one_sentence(kube: Kube, namespace: str, name: str) -> None:
    with pytest.raises(KubeError) as refused:
        await kube.create(resource(name, namespace, pool("b300", 1)), DEPLOYMENTS)
    assert "metadata.name" in str(refused.value)
    assert not isinstance(parse_deployment(resource(name, namespace, pool("b300", 1))), Deployment)


async def test_defaults_of_the_server_are_those_of_the_models(kube: Kube, namespace: str) -> None:
    body = resource("k3", namespace, pool("b300", 1, load={}, speculation={}), model={}, rollout={})
    stored = await kube.create(body, DEPLOYMENTS, dryRun="All")
    written, defaulted = parse_deployment(body), parse_deployment(stored)
    assert isinstance(written, Deployment)
    assert isinstance(defaulted, Deployment)
    assert written.spec == defaulted.spec


REFUSED: dict[str, tuple[Object, str, str]] = {
    "unknown profile": (pool("b300", 1, profile={"name": "b3000"}), "UnknownProfile", "spec.pools[b300].profile"),
    "unknown version": (
        pool("b300", 1, profile={"name": "b300", "version": "99"}),
        "UnknownProfile",
        "spec.pools[b300].profile",
    ),
    "reserved argument": (
        pool("b300", 1, overrides={"args": {"tensor-parallel-size": "4"}}),
        "ReservedOverride",
        "spec.pools[b300].overrides.args: tensor-parallel-size cannot be overridden",
    ),
    "not in this release": (
        pool("b300", disaggregation={"prefill": {"replicas": 1}, "decode": {"replicas": 1}}),
        "NotInThisRelease",
        "spec.pools[b300].disaggregation",
    ),
}


async def test_a_refused_change_touches_nothing_that_runs(site: Site) -> None:
    await site.apply("k3", pool("b300", 1))
    await site.ready("k3")
    await site.settled()
    pods = await site.pod_uids("k3")
    since = site.now()
    for bad, reason, words in REFUSED.values():
        body = resource("k3", site.namespace, {**bad, "replicas": 5} if "replicas" in bad else bad)
        await site.kube.apply(body, DEPLOYMENTS, manager="kubectl")
        condition = await site.until("k3", "Accepted", "False", reason=reason)
        assert words in condition["message"]
        assert (await site.condition("k3", "Stalled"))["status"] == "True"
        assert (await site.condition("k3", "Ready"))["reason"] == reason
    assert await site.pod_uids("k3") == pods
    assert {entry.subresource for entry in site.writes(since)} == {"status"}
    await site.apply("k3", pool("b300", 1))
    await site.ready("k3")
    assert await site.pod_uids("k3") == pods


async def test_an_object_that_older_code_stored_is_refused_and_can_be_deleted(site: Site) -> None:
    """An older CRD had no rule about the bounds; the object stays in the store when the rule comes."""
    crd = await site.kube.get("apiextensions.k8s.io/v1", CRDS, NAME)
    older = copy.deepcopy(crd)
    schema = older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    pools = schema["properties"]["spec"]["properties"]["pools"]["items"]["properties"]
    del pools["autoscaling"]["x-kubernetes-validations"]
    pools["replicas"].pop("maximum")
    path = f"/apis/apiextensions.k8s.io/v1/{CRDS}/{NAME}"
    await site.kube.request("PUT", path, body=older)
    bad = pool("b300", autoscaling={"minReplicas": 3, "maxReplicas": 2})

    async def stored() -> bool:
        try:
            await site.apply("k3", bad)
        except KubeError:
            return False
        return True

    try:
        await eventually(stored, what="the older CRD is in force")
    finally:
        newer = await site.kube.get("apiextensions.k8s.io/v1", CRDS, NAME)
        await site.kube.request("PUT", path, body={**newer, "spec": crd["spec"]})
    condition = await site.until("k3", "Accepted", "False", reason="AutoscalingBounds")
    assert condition["message"].startswith("spec.pools[b300].autoscaling.minReplicas: ")
    await site.delete("k3")
    await site.gone("k3")


TAKEN = (("services", "k3-b300-engines"), ("serviceaccounts", "k3-engine"))


async def test_an_object_of_somebody_else_with_a_childs_name_is_left_as_it_is(site: Site) -> None:
    def theirs(kind: str, name: str) -> Object:
        metadata = {"name": name, "namespace": site.namespace, "labels": {"app": "theirs"}}
        return {"apiVersion": "v1", "kind": kind, "metadata": metadata}

    service = {"spec": {"selector": {"app": "theirs"}, "ports": [{"port": 80}]}}
    await site.kube.create(theirs("Service", "k3-b300-engines") | service)
    await site.kube.create(theirs("ServiceAccount", "k3-engine"))
    before = [await site.kube.get("v1", plural, name, site.namespace) for plural, name in TAKEN]
    born = max(found["metadata"]["creationTimestamp"] for found in before)
    await eventually(lambda: site.now().strftime("%Y-%m-%dT%H:%M:%SZ") > born, what="creation times differ")

    await site.apply("k3", pool("b300", 1))
    condition = await site.until("k3", "Stalled", "True", reason="NameConflict")
    assert "Service k3-b300-engines exists and is not this deployment's" in condition["message"]
    assert "ServiceAccount k3-engine exists and is not this deployment's" in condition["message"]

    async def as_before() -> bool:
        for old, (plural, name) in zip(before, TAKEN, strict=True):
            now = await site.kube.get("v1", plural, name, site.namespace)
            fields = ("labels", "annotations", "ownerReferences")
            if any(now["metadata"].get(field) != old["metadata"].get(field) for field in fields):
                return False
            if now.get("spec") != old.get("spec"):
                return False
        return True

    await eventually(as_before, what="both are let go, as they were")
    for plural, name in TAKEN:
        await site.kube.delete("v1", plural, name, site.namespace)
    await site.until("k3", "Stalled", "False", seconds=90)


async def test_a_pool_can_be_scaled_by_kubectl_but_a_fixed_one_goes_back(site: Site) -> None:
    await site.apply("k3", pool("b300", 1))
    await site.ready("k3")
    await site.kube.patch(API_VERSION, POOLS, "k3-b300", {"spec": {"replicas": 3}}, site.namespace, subresource="scale")

    async def back() -> bool:
        found = await site.kube.get(API_VERSION, POOLS, "k3-b300", site.namespace)
        return bool(found["spec"]["replicas"] == 1)

    await eventually(back, what="the count of the spec is back")
    assert len(await site.pods("k3")) == 1

"""Admission policies that stand in for the webhooks of LeaderWorkerSet.

The real controller cannot work without its pod webhook: it gives each pod its group index, worker index and LWS_*
environment. Here the API server itself does that with a MutatingAdmissionPolicy (Kubernetes 1.36 and later), so pods
carry the same literal values without a server of ours. CEL has no SHA-1, so the group key of a leader is the one thing
that the controller writes a moment later.
"""

from __future__ import annotations

from tests.harness.kube import Kube, KubeError, Object

PREFIX = "leaderworkerset.sigs.k8s.io/"
NAME = PREFIX + "name"
GROUP_INDEX = PREFIX + "group-index"
WORKER_INDEX = PREFIX + "worker-index"
SIZE = PREFIX + "size"
LEADER_NAME = PREFIX + "leader-name"
SUBDOMAIN_POLICY = PREFIX + "subdomainPolicy"

POD_POLICY = "fake-leaderworkerset-pods"
REFUSALS = "fake-leaderworkerset-refusals"
API_VERSION = "admissionregistration.k8s.io/v1"

VARIABLES = {
    "lws": f"object.metadata.labels['{NAME}']",
    # Not by the worker-index label: a variable sees what earlier mutations did.
    "leader": f"!has(object.metadata.annotations) || !('{LEADER_NAME}' in object.metadata.annotations)",
    "group": (
        "variables.leader ? object.metadata.name.substring(size(variables.lws) + 1)"
        f" : object.metadata.labels['{GROUP_INDEX}']"
    ),
    "leaderName": "variables.lws + '-' + variables.group",
    "worker": "variables.leader ? '0' : object.metadata.name.substring(size(variables.leaderName) + 1)",
    "unique": (
        "variables.leader && has(object.metadata.annotations)"
        f" && object.metadata.annotations[?'{SUBDOMAIN_POLICY}'].orValue('Shared') == 'UniquePerReplica'"
    ),
    "subdomain": "variables.unique ? variables.leaderName : object.spec.?subdomain.orValue(variables.lws)",
    "address": "variables.leaderName + '.' + variables.subdomain + '.' + object.metadata.namespace",
    "groupSize": f"object.metadata.annotations[?'{SIZE}'].orValue('1')",
}


def _label(key: str, value: str) -> str:
    path = "/metadata/labels/" + key.replace("/", "~1")
    return f"[JSONPatch{{op: 'add', path: '{path}', value: {value}}}]"


def _environment(field: str) -> str:
    """Put the three variables in front of the container's own; a user's value of the same name is overridden."""
    names = "['LWS_LEADER_ADDRESS', 'LWS_GROUP_SIZE', 'LWS_WORKER_INDEX']"
    entries = (
        f"[Object.spec.{field}.env{{name: 'LWS_LEADER_ADDRESS', value: variables.address}},"
        f" Object.spec.{field}.env{{name: 'LWS_GROUP_SIZE', value: variables.groupSize}},"
        f" Object.spec.{field}.env{{name: 'LWS_WORKER_INDEX', value: variables.worker}}]"
    )
    return (
        f"object.spec.?{field}.orValue([]).transformList(i, c, JSONPatch{{op: 'add',"
        f" path: '/spec/{field}/' + string(i) + '/env',"
        f" value: dyn({entries}) + dyn(c.?env.orValue([]).filter(e, !(e.name in {names})))}})"
    )


def pod_policy() -> list[Object]:
    """The policy and binding that label each LeaderWorkerSet pod and set its environment."""
    mutations = [
        _label(GROUP_INDEX, "variables.group"),
        _label(WORKER_INDEX, "variables.worker"),
        "variables.unique ? [JSONPatch{op: 'add', path: '/spec/subdomain', value: variables.leaderName}] : []",
        _environment("containers"),
        _environment("initContainers"),
    ]
    policy: Object = {
        "apiVersion": API_VERSION,
        "kind": "MutatingAdmissionPolicy",
        "metadata": {"name": POD_POLICY},
        "spec": {
            "failurePolicy": "Fail",
            "reinvocationPolicy": "Never",
            "matchConstraints": {
                "objectSelector": {"matchExpressions": [{"key": NAME, "operator": "Exists"}]},
                "resourceRules": [
                    {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
                ],
            },
            "variables": [{"name": name, "expression": text} for name, text in VARIABLES.items()],
            "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": text}} for text in mutations],
        },
    }
    binding: Object = {
        "apiVersion": API_VERSION,
        "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": POD_POLICY},
        "spec": {"policyName": POD_POLICY},
    }
    return [policy, binding]


ROLLING = "object.spec.?rolloutStrategy.?rollingUpdateConfiguration"
RULES = {
    "object.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$') && size(object.metadata.name) < 64": (
        "metadata.name must be a DNS-1035 label"
    ),
    "object.spec.leaderWorkerTemplate.?size.orValue(1) >= 1": "size must be at least 1",
    f"{ROLLING}.?partition.orValue(0) >= 0": "partition must not be negative",
    (
        f"object.spec.?replicas.orValue(1) == 0 || !(string({ROLLING}.?maxUnavailable.orValue(1)) in ['0', '0%']"
        f" && string({ROLLING}.?maxSurge.orValue(0)) in ['0', '0%'])"
    ): "maxUnavailable and maxSurge must not both be 0",
}


def refusals() -> list[Object]:
    """The policy and binding that refuse, with 403, the LeaderWorkerSets that the validating webhook refuses."""
    policy: Object = {
        "apiVersion": API_VERSION,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": REFUSALS},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "resourceRules": [
                    {
                        "apiGroups": ["leaderworkerset.x-k8s.io"],
                        "apiVersions": ["v1"],
                        "operations": ["CREATE", "UPDATE"],
                        "resources": ["leaderworkersets"],
                    }
                ]
            },
            "validations": [
                {"expression": rule, "message": message, "reason": "Forbidden"} for rule, message in RULES.items()
            ],
        },
    }
    binding: Object = {
        "apiVersion": API_VERSION,
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": REFUSALS},
        "spec": {"policyName": REFUSALS, "validationActions": ["Deny"]},
    }
    return [policy, binding]


async def install(kube: Kube) -> None:
    """Install both policies and return once the API server applies the pod policy; raises KubeError until then."""
    for body in pod_policy() + refusals():
        await kube.apply(body)
    probe: Object = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "probe-0-1",
            "namespace": "default",
            "labels": {NAME: "probe", GROUP_INDEX: "0"},
            "annotations": {SIZE: "2", LEADER_NAME: "probe-0"},
        },
        "spec": {"containers": [{"name": "probe", "image": "probe"}]},
    }
    answer = await kube.create(probe, dryRun="All")
    if answer["metadata"]["labels"].get(WORKER_INDEX) != "1":
        raise KubeError("POST", "pods (dry run)", 503, "the pod policy is not in force yet")

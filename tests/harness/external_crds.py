"""The CRDs of other projects that the operator writes or reads.

Where the real files are at hand (`../shared/external-crds` beside the repository) they are installed; elsewhere
permissive stand-ins of the same group, version, kind, scope and subresources, which accept any content.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import yaml

from tests.harness.kube import Kube, Object, eventually

REAL = Path(__file__).resolve().parents[3] / "shared" / "external-crds"
CRD = "apiextensions.k8s.io/v1"
ESTABLISHED_SECONDS = 240.0


@dataclass(frozen=True)
class Kind:
    """What a stand-in must share with the real CRD. `versions`: served ones, the stored one first."""

    group: str
    kind: str
    plural: str
    versions: tuple[str, ...]
    short_names: tuple[str, ...] = ()
    namespaced: bool = True
    status: bool = True
    selector_path: str = ""
    """Where a scale subresource finds its label selector; empty: no scale subresource."""


LWS = "leaderworkerset.x-k8s.io"
DISAGGREGATED_SET = "disaggregatedset.x-k8s.io"
INFERENCE_POOL = "inference.networking.k8s.io"
LLM_D = "llm-d.ai"
GATEWAY_API = "gateway.networking.k8s.io"
KEDA = "keda.sh"
PROMETHEUS = "monitoring.coreos.com"
COMPUTE_DOMAIN = "resource.nvidia.com"
KUEUE = "kueue.x-k8s.io"

_KUEUE_VERSIONS = ("v1beta2", "v1beta1")
KINDS = (
    Kind(LWS, "LeaderWorkerSet", "leaderworkersets", ("v1",), ("lws",), selector_path=".status.hpaPodSelector"),
    Kind(DISAGGREGATED_SET, "DisaggregatedSet", "disaggregatedsets", ("v1",)),
    Kind(
        DISAGGREGATED_SET,
        "DisaggregatedSetRoleScaler",
        "disaggregatedsetrolescalers",
        ("v1",),
        ("dsrs",),
        selector_path=".status.selector",
    ),
    Kind(INFERENCE_POOL, "InferencePool", "inferencepools", ("v1",), ("infpool",)),
    Kind(LLM_D, "InferenceObjective", "inferenceobjectives", ("v1alpha2",)),
    Kind(LLM_D, "InferenceModelRewrite", "inferencemodelrewrites", ("v1alpha2",)),
    Kind(GATEWAY_API, "GatewayClass", "gatewayclasses", ("v1", "v1beta1"), ("gc",), namespaced=False),
    Kind(GATEWAY_API, "Gateway", "gateways", ("v1", "v1beta1"), ("gtw",)),
    Kind(GATEWAY_API, "HTTPRoute", "httproutes", ("v1", "v1beta1")),
    Kind(GATEWAY_API, "ReferenceGrant", "referencegrants", ("v1beta1", "v1"), ("refgrant",), status=False),
    Kind(GATEWAY_API, "BackendTLSPolicy", "backendtlspolicies", ("v1",), ("btlspolicy",)),
    Kind(KEDA, "ScaledObject", "scaledobjects", ("v1alpha1",), ("so",)),
    Kind(KEDA, "TriggerAuthentication", "triggerauthentications", ("v1alpha1",), ("ta",)),
    Kind(KEDA, "ClusterTriggerAuthentication", "clustertriggerauthentications", ("v1alpha1",), ("cta",), False),
    Kind(PROMETHEUS, "PodMonitor", "podmonitors", ("v1",), ("pmon",)),
    Kind(PROMETHEUS, "ServiceMonitor", "servicemonitors", ("v1",), ("smon",)),
    Kind(PROMETHEUS, "PrometheusRule", "prometheusrules", ("v1",), ("promrule",)),
    Kind(COMPUTE_DOMAIN, "ComputeDomain", "computedomains", ("v1beta1",)),
    Kind(COMPUTE_DOMAIN, "ComputeDomainClique", "computedomaincliques", ("v1beta1",), status=False),
    Kind(KUEUE, "LocalQueue", "localqueues", _KUEUE_VERSIONS, ("lq",)),
    Kind(KUEUE, "ClusterQueue", "clusterqueues", _KUEUE_VERSIONS, ("cq",), namespaced=False),
    Kind(KUEUE, "Workload", "workloads", _KUEUE_VERSIONS, ("kwl",)),
    Kind(KUEUE, "Topology", "topologies", _KUEUE_VERSIONS, ("topo",), namespaced=False, status=False),
    Kind(KUEUE, "ResourceFlavor", "resourceflavors", _KUEUE_VERSIONS, ("rf",), namespaced=False, status=False),
    Kind(KUEUE, "WorkloadPriorityClass", "workloadpriorityclasses", _KUEUE_VERSIONS, ("wpc",), False, False),
    Kind(KUEUE, "AdmissionCheck", "admissionchecks", _KUEUE_VERSIONS, ("ac",), namespaced=False),
    Kind(KUEUE, "Cohort", "cohorts", _KUEUE_VERSIONS, ("co",), namespaced=False),
)
GROUPS = tuple(dict.fromkeys(kind.group for kind in KINDS))


def stand_in(kind: Kind) -> Object:
    """A CRD that accepts any spec and status of `kind`."""
    subresources: Object = {"status": {}} if kind.status else {}
    if kind.selector_path:
        subresources["scale"] = {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": kind.selector_path,
        }
    anything: Object = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"openAPIV3Schema": {**anything, "properties": {"spec": anything, "status": anything}}}
    return {
        "apiVersion": CRD,
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{kind.plural}.{kind.group}",
            # Groups below k8s.io are refused without this note.
            "annotations": {"api-approved.kubernetes.io": "unapproved, stand-in of a test harness"},
        },
        "spec": {
            "group": kind.group,
            "scope": "Namespaced" if kind.namespaced else "Cluster",
            "names": {
                "kind": kind.kind,
                "listKind": f"{kind.kind}List",
                "plural": kind.plural,
                "singular": kind.kind.lower(),
                "shortNames": list(kind.short_names),
            },
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": version == kind.versions[0],
                    "schema": schema,
                    "subresources": subresources,
                }
                for version in kind.versions
            ],
        },
    }


def real_files(folder: Path = REAL) -> dict[str, Path]:
    """CRD name to file, for the files that are at hand."""
    return {path.stem: path for path in folder.glob("*/*.yaml")} if folder.is_dir() else {}


def definitions(groups: Collection[str] = GROUPS, folder: Path = REAL) -> list[tuple[Object, str]]:
    """The CRDs of `groups`, each with "real" or "stand-in". Raises ValueError for an unknown group."""
    unknown = sorted(set(groups) - set(GROUPS))
    if unknown:
        raise ValueError(f"no external CRDs of group {', '.join(unknown)}; known: {', '.join(GROUPS)}")
    files = real_files(folder)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the large files take seconds without the C parser
    found: list[tuple[Object, str]] = []
    for kind in KINDS:
        if kind.group not in groups:
            continue
        path = files.get(f"{kind.plural}.{kind.group}")
        if path is None:
            found.append((stand_in(kind), "stand-in"))
        else:
            body: Object = yaml.load(path.read_text(), Loader=loader)
            for version in body["spec"]["versions"]:
                version["schema"]["openAPIV3Schema"] = without_descriptions(version["schema"]["openAPIV3Schema"])
            found.append((body, "real"))
    return found


def without_descriptions(schema: Object) -> Object:
    """The same schema without its prose, which is most of the bytes of the large ones and makes their server slow."""
    slim = {key: value for key, value in schema.items() if key != "description"}
    if "properties" in slim:
        slim["properties"] = {name: without_descriptions(value) for name, value in slim["properties"].items()}
    for key in ("items", "additionalProperties", "not"):
        if isinstance(slim.get(key), dict):
            slim[key] = without_descriptions(slim[key])
    for key in ("allOf", "anyOf", "oneOf"):
        if key in slim:
            slim[key] = [without_descriptions(one) for one in slim[key]]
    return slim


async def install_crds(kube: Kube, crds: Iterable[Object]) -> None:
    """Create or update CRDs; returns when all are Established. Raises KubeError or AssertionError (not established)."""
    bodies = list(crds)
    for body in bodies:
        body.pop("status", None)
    await asyncio.gather(*(kube.apply(body, "customresourcedefinitions") for body in bodies))

    for body in bodies:
        name = body["metadata"]["name"]
        check = partial(is_established, kube, name)
        await eventually(check, seconds=ESTABLISHED_SECONDS, what=f"{name} Established")


async def is_established(kube: Kube, name: str) -> bool:
    """Whether the CRD `name` (`<plural>.<group>`) exists and is served."""
    crd = await kube.find(CRD, "customresourcedefinitions", name)
    conditions = (crd or {}).get("status", {}).get("conditions") or []
    return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)


async def install(kube: Kube, groups: Collection[str] = GROUPS, folder: Path = REAL) -> dict[str, str]:
    """Install the CRDs of `groups`; returns CRD name to "real" or "stand-in"."""
    found = definitions(groups, folder)
    await install_crds(kube, (body for body, _ in found))
    return {body["metadata"]["name"]: source for body, source in found}


async def remove(kube: Kube, groups: Collection[str]) -> None:
    """Delete the CRDs of `groups` with all their objects; returns when they are gone."""
    names = [f"{kind.plural}.{kind.group}" for kind in KINDS if kind.group in groups]
    for name in names:
        await kube.delete(CRD, "customresourcedefinitions", name)

    async def gone() -> bool:
        return not any([await kube.find(CRD, "customresourcedefinitions", name) for name in names])

    await eventually(gone, seconds=ESTABLISHED_SECONDS, what="external CRDs gone")

"""`KimiK3Deployment`, the resource that users write."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from kimi_k3_operator.api.base import (
    AbsolutePath,
    ApiModel,
    DnsLabel,
    DnsSubdomain,
    Duration,
    HubId,
    HubRevision,
    ImageReference,
    LabelKey,
    LabelValue,
    PoolName,
    RelativePath,
    SecretKey,
    ServedName,
    list_atomic,
    list_map,
    list_set,
    text,
)
from kimi_k3_operator.api.rules import rules_at

DEFAULT_MODEL = "moonshotai/Kimi-K3"
DEFAULT_SERVED_NAME = "kimi-k3"

FlagName = Annotated[str, text(r"^[a-z][a-z0-9-]*$", most=80)]
EnvName = Annotated[str, text(r"^[A-Za-z_][A-Za-z0-9_]*$", most=128)]
OverrideValue = Annotated[str, text(r"^[^\x00]*$", most=4096, least=0)]


class Model(ApiModel):
    """Which model is served, and under which name."""

    id: HubId = Field(DEFAULT_MODEL, description="Model repository; names the model, weights come from spec.weights.")
    revision: HubRevision | None = Field(None, description="Repository revision, a full commit hash for choice.")
    served_name: ServedName = Field(DEFAULT_SERVED_NAME, description="Model name that clients send.")


class PersistentVolumeClaim(ApiModel, json_schema_extra=rules_at("persistentVolumeClaim")):
    claim_name: DnsSubdomain = Field(description="An existing claim in the namespace of this resource.")
    sub_path: Annotated[str, text(r"^[^/\x00][^\x00]*$", most=1024)] | None = Field(
        None, description="Folder of the checkpoint inside the volume."
    )


class HostPath(ApiModel, json_schema_extra=rules_at("hostPath")):
    path: AbsolutePath = Field(description="Folder of the checkpoint on every node that serves.")


class SecretKeyRef(ApiModel):
    name: DnsSubdomain
    key: SecretKey


class HubCache(ApiModel, json_schema_extra=rules_at("hubCache")):
    """Where the hub's files are kept; exactly one of the two."""

    persistent_volume_claim: PersistentVolumeClaim | None = None
    host_path: HostPath | None = None


class HuggingFace(ApiModel):
    token_secret_ref: SecretKeyRef | None = Field(None, description="Hub token; only the download sees it.")
    cache: HubCache


class Weights(ApiModel, json_schema_extra=rules_at("weights")):
    """Where the checkpoint comes from; exactly one source."""

    persistent_volume_claim: PersistentVolumeClaim | None = None
    host_path: HostPath | None = None
    hugging_face: HuggingFace | None = None


class ProfileRef(ApiModel):
    name: DnsLabel = Field(description="Hardware profile; `kimi-k3 profiles list` shows them.")
    version: Annotated[str, text(r"^[1-9][0-9]{0,3}$", most=4)] | None = Field(
        None, description="Profile version. Absent: the newest stable one when the pool is first seen, then kept."
    )


class Autoscaling(ApiModel, json_schema_extra=rules_at("autoscaling")):
    """Bounds for whoever writes the replica count through the scale subresource of the KimiK3Pool."""

    min_replicas: int = Field(ge=1, le=1000)
    max_replicas: int = Field(ge=1, le=1000)


class RoleReplicas(ApiModel):
    replicas: int = Field(ge=1, le=500)


class Disaggregation(ApiModel):
    """Prefill and decode on replicas of their own."""

    prefill: RoleReplicas
    decode: RoleReplicas


class Load(ApiModel):
    """The load to expect per replica; it chooses the profile's band."""

    concurrency: int = Field(8, ge=1, le=1024, description="Concurrent requests per replica.")
    context_tokens: int = Field(131072, ge=1024, le=1048576, description="Usual prompt plus answer, in tokens.")


class Draft(ApiModel, json_schema_extra=rules_at("draft")):
    """A draft model for speculative decoding."""

    id: HubId
    revision: HubRevision | None = None
    sub_path: RelativePath | None = Field(None, description="Folder of the draft beside the checkpoint.")
    path: AbsolutePath | None = Field(None, description="Path of the draft inside the engine container.")


class SpeculationSpec(ApiModel):
    mode: Literal["Auto", "Off", "DSpark"] = "Auto"
    draft: Draft | None = None
    tokens: int | None = Field(None, ge=1, le=7, description="Draft tokens per step.")


class ImageOverride(ApiModel):
    reference: ImageReference
    engine_version: Annotated[str, text(r"^0\.[0-9]{1,3}\.[0-9]{1,3}$", most=12)] = Field(
        description="vLLM version inside the image; everything rendered is checked against it."
    )


class Toleration(ApiModel):
    key: LabelKey | None = None
    operator: Literal["Exists", "Equal"] = "Equal"
    value: LabelValue | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    toleration_seconds: int | None = Field(None, ge=0, le=86400)


class Scheduling(ApiModel):
    node_selector: Annotated[dict[LabelKey, LabelValue], Field(max_length=16)] | None = None
    tolerations: Annotated[tuple[Toleration, ...], list_atomic(max_items=16)] | None = None
    priority_class_name: DnsSubdomain | None = None


class Overrides(ApiModel):
    """Engine settings that differ from the profile. Keys the operator must control are refused."""

    args: Annotated[dict[FlagName, OverrideValue], Field(max_length=64)] | None = Field(
        None, description="vLLM flag without dashes to value; an empty value is a bare flag."
    )
    env: Annotated[dict[EnvName, OverrideValue], Field(max_length=64)] | None = None
    unset_args: Annotated[tuple[FlagName, ...], list_set(max_items=64)] | None = None
    unset_env: Annotated[tuple[EnvName, ...], list_set(max_items=64)] | None = None


class Pool(ApiModel, json_schema_extra=rules_at("pool")):
    """Replicas of one kind of hardware."""

    name: PoolName
    profile: ProfileRef
    replicas: int | None = Field(None, ge=0, le=1000)
    autoscaling: Autoscaling | None = None
    disaggregation: Disaggregation | None = None
    weights: Weights | None = Field(None, description="Overrides spec.weights for this pool.")
    load: Load | None = None
    speculation: SpeculationSpec | None = None
    image: ImageOverride | None = None
    startup_budget: Duration | None = Field(None, description="From container start to serving, such as 2h.")
    drain_seconds: int = Field(900, ge=60, le=3600, description="Seconds that running requests get on shutdown.")
    scheduling: Scheduling | None = None
    overrides: Overrides | None = None


class Gateway(ApiModel):
    name: DnsSubdomain
    namespace: DnsLabel | None = None
    section_name: DnsSubdomain | None = None
    hostnames: Annotated[tuple[DnsSubdomain, ...], list_set(max_items=16)] | None = None


class Session(ApiModel):
    header: Annotated[str, text(r"^[a-z][a-z0-9-]*$", most=64)] = "x-session-id"


class SecretRef(ApiModel):
    name: DnsSubdomain


class ApiKeys(ApiModel):
    secret_ref: SecretRef


class Auth(ApiModel):
    api_keys: ApiKeys


class Tls(ApiModel):
    secret_ref: SecretRef


class Routing(ApiModel):
    """How requests reach the replicas. Absent gateway: an entrance of the operator's own."""

    pooling: Literal["Unified", "PerPool"] = "Unified"
    gateway: Gateway | None = None
    session: Session | None = None
    auth: Auth | None = None
    tls: Tls | None = None


class ComputeDomainRef(ApiModel):
    existing: DnsSubdomain = Field(description="Name of a ComputeDomain in this namespace that is shared.")


class Placement(ApiModel, json_schema_extra=rules_at("placement")):
    mode: Literal["Auto", "Planner", "Kueue"] = "Auto"
    domain_label: LabelKey | None = Field(None, description="Node label that names the NVLink domain.")
    queue_name: DnsSubdomain | None = Field(None, description="Kueue LocalQueue; then Kueue places.")
    compute_domain: ComputeDomainRef | None = None


class Rollout(ApiModel):
    max_unavailable: int = Field(1, ge=1, le=100, description="Replicas of a pool that may be down at once.")
    updates: Literal["Manual", "Automatic"] = "Manual"


class Verification(ApiModel):
    gate: Literal["Enforce", "Report"] = "Enforce"
    tier: Literal["Smoke", "Wire", "Behaviour"] = "Smoke"
    profile: Literal["vllm", "moonshot"] = "vllm"


class LocalObjectReference(ApiModel):
    name: DnsSubdomain


class KimiK3DeploymentSpec(ApiModel, json_schema_extra=rules_at("spec")):
    """What is to be served, from where, on which hardware."""

    model: Model | None = None
    weights: Weights | None = None
    image_pull_secrets: Annotated[tuple[LocalObjectReference, ...], list_map("name", max_items=8)] | None = None
    pools: Annotated[tuple[Pool, ...], list_map("name", max_items=16), Field(min_length=1)]
    routing: Routing | None = None
    placement: Placement | None = None
    rollout: Rollout | None = None
    verification: Verification | None = None
    paused: bool = Field(False, description="True: the operator changes nothing and only reports.")

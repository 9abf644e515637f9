"""Status of both kinds, and `KimiK3Pool`, the derived object that carries the scale subresource.

Statuses are written whole by server-side apply; every list is bounded.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from kimi_k3_operator.api.base import ApiModel, DnsLabel, DnsSubdomain, PoolName, list_map, list_set, text

ConditionType = Annotated[str, text(r"^[A-Z][A-Za-z0-9]*$", most=64)]
Message = Annotated[str, Field(max_length=4096)]
Short = Annotated[str, Field(max_length=512)]
Timestamp = Annotated[str, Field(max_length=32, json_schema_extra={"format": "date-time"})]


class Condition(ApiModel):
    """A standard Kubernetes condition."""

    type: ConditionType
    status: Literal["True", "False", "Unknown"]
    reason: Annotated[str, text(r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$", most=256)]
    message: Message
    observed_generation: int = Field(ge=0)
    last_transition_time: Timestamp


Conditions = Annotated[tuple[Condition, ...], list_map("type", max_items=16)]


class PoolSummary(ApiModel):
    """One pool in the status of its deployment."""

    name: PoolName
    hardware: Short
    profile: Short = Field(description="Profile and version in use, such as `b300/1`.")
    desired: int
    ready: int
    speculation: Short | None = Field(None, description="What speculative decoding does here, and why.")


class KimiK3DeploymentStatus(ApiModel):
    observed_generation: int | None = None
    conditions: Conditions | None = None
    endpoint: Annotated[str, Field(max_length=1024)] | None = Field(None, description="Base URL for clients.")
    replicas: Short | None = Field(None, description="Serving replicas of all desired ones, such as `6/7`.")
    hardware: Short | None = Field(None, description="Replicas by hardware, such as `2 x B300, 4 x GB300`.")
    pools: Annotated[tuple[PoolSummary, ...], list_map("name", max_items=16)] | None = None


Phase = Literal[
    "Pending", "Scheduling", "Starting", "Verifying", "Ready", "NotReady", "Failed", "Updating", "Terminating"
]


class ReplicaStatus(ApiModel):
    """One replica. `since` is when it entered its phase."""

    name: DnsLabel
    phase: Phase
    nodes: Annotated[tuple[DnsSubdomain, ...], list_set(max_items=2)] | None = None
    domain: Annotated[str, Field(max_length=128)] | None = Field(None, description="NVLink domain.")
    revision: Annotated[str, Field(max_length=128)] | None = None
    image: Short | None = Field(None, description="Image the leader's engine container really runs, by digest.")
    message: Short | None = None
    since: Timestamp | None = None


class KimiK3PoolSpec(ApiModel):
    """Derived from a KimiK3Deployment; only the scale subresource is meant to be written by others."""

    deployment: DnsLabel
    pool: PoolName
    role: Literal["prefill", "decode"] | None = None
    profile: Annotated[str, Field(max_length=64)] = Field(description="Adopted profile and version: `b300/1`.")
    replicas: int | None = Field(None, ge=0, le=1000)


class DomainCapacity(ApiModel):
    name: Annotated[str, Field(max_length=128)]
    free_nodes: int
    nodes: int


class KimiK3PoolStatus(ApiModel):
    observed_generation: int | None = None
    replicas: int | None = Field(None, description="Existing replicas; read by autoscalers.")
    ready_replicas: int | None = None
    selector: Annotated[str, Field(max_length=512)] | None = Field(None, description="Pods that serve HTTP.")
    revision: Annotated[str, Field(max_length=128)] | None = Field(None, description="Revision being served.")
    replica_statuses: Annotated[tuple[ReplicaStatus, ...], list_map("name", max_items=1000)] | None = None
    domains: Annotated[tuple[DomainCapacity, ...], list_map("name", max_items=256)] | None = None

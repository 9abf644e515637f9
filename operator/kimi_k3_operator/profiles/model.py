"""What a hardware profile states. One YAML file in `profiles/<name>/<version>.yaml` is one `Profile`.

Units are in the field names: `Gib` is GiB, `Bytes` bytes, `Seconds` seconds, `tokens` tokens.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from pydantic.alias_generators import to_camel

Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,30}$")]
EngineVersion = Annotated[str, StringConstraints(pattern=r"^0\.\d+\.\d+$")]

ArgValue = str | int | float | bool | dict[str, Any]
"""`true` renders `--name`, `false` renders `--no-name`, a mapping renders compact JSON, anything else its text."""


class ProfileModel(BaseModel):
    """Frozen, camelCase in YAML, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True)


class LabelRequirement(ProfileModel):
    """One node label requirement, as in a Kubernetes node selector term."""

    key: str
    operator: Literal["In", "Exists"] = "In"
    values: tuple[str, ...] = ()


class Toleration(ProfileModel):
    key: str
    operator: Literal["Exists", "Equal"] = "Exists"
    value: str | None = None
    effect: Literal["NoSchedule", "NoExecute"] | None = None


class Hardware(ProfileModel):
    vendor: Literal["nvidia", "amd"]
    display_name: str
    gpu_resource: str
    gpus_per_node: int = Field(ge=1)
    nodes_per_replica: int = Field(ge=1, le=2)
    architecture: Literal["amd64", "arm64"]
    node_selection: tuple[tuple[LabelRequirement, ...], ...] = Field(min_length=1)
    """Alternatives (any of them matches a node); the requirements inside one alternative all hold."""
    tolerations: tuple[Toleration, ...] = ()
    domain_labels: tuple[str, ...] = ()
    """Node labels that may name the NVLink domain, the first present on all candidate nodes wins. Empty: no domains."""

    @property
    def gpus_per_replica(self) -> int:
        return self.gpus_per_node * self.nodes_per_replica

    @property
    def multi_node(self) -> bool:
        return self.nodes_per_replica > 1


class Image(ProfileModel):
    reference: str
    """Repository and tag."""
    digest: str | None = None
    """`sha256:...` where a public source states it; never guessed."""


class Engine(ProfileModel):
    version: EngineVersion
    image: Image
    command: tuple[str, ...]
    args: dict[str, ArgValue]
    """Flag name without dashes to value; the same for every replica of this profile."""
    env: dict[str, str] = {}


class Memory(ProfileModel):
    gib_per_gpu: int
    """GiB that the driver reports per GPU."""
    shm_gib: int
    kv_tokens: int
    """KV-cache tokens of one replica without a draft (all GPUs together)."""
    kv_tokens_with_draft: int | None = None
    """The same with the profile's largest draft."""


class Startup(ProfileModel):
    weight_bytes: int
    readers_per_replica: int
    """How many nodes of a replica read the whole checkpoint from one shared source."""
    host_path_bytes_per_second: int
    shared_claim_bytes_per_second: int
    fixed_seconds: int
    """Engine start beyond reading the weights: process start, compilation, graph capture."""
    minimum_seconds: int
    minimum_seconds_shared_claim: int


class Band(ProfileModel):
    """Arguments for a load of at most `max_concurrency` concurrent requests per replica."""

    max_concurrency: int
    args: dict[str, ArgValue]


class Draft(ProfileModel):
    id: str
    block_size: int
    """The largest number of draft tokens the draft model was trained for."""
    weight_bytes: int | None = None


class AutoTokens(ProfileModel):
    """`tokens` draft tokens up to `max_concurrency`, for contexts up to `max_context_tokens`."""

    max_concurrency: int
    max_context_tokens: int
    tokens: int


class Speculation(ProfileModel):
    drafts: tuple[Draft, ...]
    """The first one is the default."""
    config: dict[str, str]
    """Keys of `--speculative-config` besides model, method and number of tokens."""
    auto: tuple[AutoTokens, ...] = ()
    """Rules of mode Auto, first match wins; none matches: off."""
    explicit_tokens: int
    """Tokens for mode DSpark when the user names none."""


class Role(ProfileModel):
    args: dict[str, ArgValue]


class Disaggregation(ProfileModel):
    connector: str
    kv_role: Literal["kv_both", "kv_producer", "kv_consumer"] = "kv_both"
    """The connector's role in prefill and decode engines alike."""
    kv_load_failure_policy: Literal["fail", "recompute"] = "fail"
    side_channel_port: int
    args: dict[str, ArgValue]
    env: dict[str, str]
    prefill: Role
    decode: Role


class Routing(ProfileModel):
    prefix_block_tokens: int
    lru_capacity_per_server: int
    lru_capacity_per_server_with_draft: int | None = None
    peak_prefill_tokens_per_second: int


class SecurityException(ProfileModel):
    """A setting that the restricted pod security standard forbids, with the reason the engine needs it."""

    setting: str
    """`field=value` of the container's security context: `runAsUser=0`, `capabilities.add=IPC_LOCK`."""
    applies: Literal["always", "disaggregated"] = "always"
    """`disaggregated`: needed only where prefill and decode run apart."""
    reason: str


class Source(ProfileModel):
    """Where a value comes from."""

    source: str
    kind: Literal["measured", "published", "derived"]
    engine: str | None = None
    """Engine build on which it was measured."""
    carried_over: bool = False
    """True where that build differs from the pinned one."""
    note: str | None = None


class Profile(ProfileModel):
    name: Name
    version: Annotated[str, StringConstraints(pattern=r"^[1-9]\d{0,3}$")]
    channel: Literal["stable", "candidate"]
    summary: str
    hardware: Hardware
    engine: Engine
    memory: Memory
    startup: Startup
    bands: tuple[Band, ...] = Field(min_length=1)
    """Ascending by max_concurrency; the last one also serves anything above it."""
    speculation: Speculation
    disaggregation: Disaggregation | None = None
    """None: this hardware does not serve prefill and decode apart in this version."""
    disaggregation_refusal: str | None = None
    """Why `disaggregation` is absent, as a sentence for the user."""
    routing: Routing
    security_exceptions: tuple[SecurityException, ...] = ()
    provenance: dict[str, Source]
    """Dotted path of a value (`engine.args.max-model-len`) or of a subtree to its source."""

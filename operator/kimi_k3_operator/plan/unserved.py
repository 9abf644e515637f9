"""Parts of the API that this release does not act on yet: they are refused, never silently ignored."""

from __future__ import annotations

from collections.abc import Iterator

from kimi_k3_operator.api.refusal import Refusal
from kimi_k3_operator.api.v1alpha1 import KimiK3DeploymentSpec

_ID = "not-in-this-release"


def unserved(spec: KimiK3DeploymentSpec) -> tuple[Refusal, ...]:
    """A refusal for each field that is set and would have no effect."""
    return tuple(sorted(_unserved(spec)))


def _unserved(spec: KimiK3DeploymentSpec) -> Iterator[Refusal]:
    if spec.routing is not None and spec.routing.gateway is not None:
        yield Refusal(_ID, "this release makes an entrance of its own", "spec.routing.gateway", "leave it out")
    if spec.routing is not None and spec.routing.pooling == "PerPool":
        yield Refusal(_ID, "this release routes over all pools at once", "spec.routing.pooling", "use Unified")
    if spec.verification is not None and spec.verification.tier != "Smoke":
        yield Refusal(_ID, "this release verifies with tier Smoke", "spec.verification.tier", "use Smoke")
    if spec.verification is not None and spec.verification.profile != "vllm":
        yield Refusal(_ID, "this release knows the profile vllm", "spec.verification.profile", "use vllm")
    if spec.placement is not None and (spec.placement.mode == "Kueue" or spec.placement.queue_name is not None):
        yield Refusal(_ID, "this release does not hand placement to Kueue", "spec.placement", "use mode Auto")
    if spec.rollout is not None and spec.rollout.updates == "Automatic":
        yield Refusal(_ID, "this release rolls on a change of the spec only", "spec.rollout.updates", "use Manual")
    for pool in spec.pools:
        if pool.disaggregation is not None:
            where = f"spec.pools[{pool.name}].disaggregation"
            yield Refusal(_ID, "this release does not serve prefill and decode apart", where, "use replicas")

"""What one pool should be: its replicas, each with a revision and a place, and what stands in the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kimi_k3_operator.api import names
from kimi_k3_operator.api.base import Manifest
from kimi_k3_operator.api.parse import Deployment
from kimi_k3_operator.api.v1alpha1 import Pool, Rollout
from kimi_k3_operator.compile import objects
from kimi_k3_operator.compile.replica import PoolKey, Replica
from kimi_k3_operator.compile.revision import Revision, compile_revision, controller_revision, parse_revision
from kimi_k3_operator.compile.workloads import workload
from kimi_k3_operator.inventory.model import DomainPlacement, Inventory, Promise
from kimi_k3_operator.inventory.selection import DomainState, domain_label, domains, free_nodes, needs_of
from kimi_k3_operator.plan.placement import Placement, no_room, place
from kimi_k3_operator.plan.replicas import Observed, new_replicas, observe, victims
from kimi_k3_operator.plan.rollout import roll
from kimi_k3_operator.plan.snapshot import Child, Snapshot
from kimi_k3_operator.profiles.engine import EngineConfig

GROUP_APIS: Mapping[str, str] = {
    "LeaderWorkerSet": "leaderworkerset.x-k8s.io/v1",
    "ComputeDomain": "resource.nvidia.com/v1beta1",
}
"""Kinds that multi-node hardware needs, with the API that serves them."""
_KEPT_REVISIONS = 10


@dataclass(frozen=True)
class PoolPlan:
    key: PoolKey
    pool: Pool
    engine: EngineConfig
    target: Revision
    update_available: bool
    """This operator would render the target's inputs differently."""
    desired: int
    observed: tuple[Observed, ...]
    manifests: tuple[Manifest, ...]
    workloads: tuple[Manifest, ...]
    surplus: tuple[Child, ...]
    """Workloads to give up."""
    unplaced: Mapping[str, str]
    """Replicas without a workload, each with the reason."""
    promises: tuple[Promise, ...]
    """What this pass newly promises."""
    domains: tuple[DomainState, ...]
    free_nodes: int
    missing_api: str
    """Kind and API that must be installed before this pool can go on; empty if none."""
    wanted: frozenset[str]
    """Names of the replicas that the pool should have."""

    @property
    def staying(self) -> tuple[Observed, ...]:
        return tuple(seen for seen in self.observed if seen.name in self.wanted and not seen.terminating)

    @property
    def ready(self) -> int:
        """Replicas that are ready, whatever their revision."""
        return sum(seen.ready for seen in self.staying)


def plan_pool(
    snapshot: Snapshot, deployment: Deployment, pool: Pool, engine: EngineConfig, inventory: Inventory
) -> PoolPlan:
    """The plan of one aggregated pool. `inventory` holds the promises of all pools planned before."""
    key = PoolKey(deployment.namespace, deployment.name, pool.name)
    multi_node = engine.profile.hardware.multi_node
    children = tuple(child for child in snapshot.owned() if (child.pool, child.role) == (key.pool, key.role))
    claim_template, claim_problem = _claim_template(deployment, inventory) if multi_node else (None, "")
    compiled = compile_revision(key, deployment.spec, pool, engine, claim_template)
    stored = _stored_revisions(children)
    target, number = _target(compiled, stored)
    desired = desired_replicas(pool, children)
    observed = observe(key, children, snapshot.pods)
    missing_api = _missing_api(snapshot) if multi_node else ""

    present = [seen for seen in observed if not seen.terminating]
    given_up = victims(present, len(present) - desired) if len(present) > desired else ()
    staying = [seen for seen in present if seen not in given_up]
    rollout = deployment.spec.rollout or Rollout()
    # Replicas that never had a place hold nothing up: the allowance is counted from those that have a workload.
    rolling = roll(staying, target.name, desired=len(staying), max_unavailable=rollout.max_unavailable)
    other_kind = [seen for seen in staying if (seen.size == 2) != target.multi_node]
    moved = tuple(seen for seen in other_kind if seen.name in rolling.update and not missing_api)
    staying = [seen for seen in staying if seen not in moved]
    fresh = new_replicas(key, (seen.replica for seen in observed), max(0, desired - len(staying)))

    placement = Placement({}, {}, ())
    if multi_node and not snapshot.open_placement:
        blocked = _why_not_placed(snapshot, missing_api, claim_problem)
        placement = _place(deployment, pool, engine, inventory, fresh, snapshot, blocked)
    revisions = {revision.name: revision for _, revision in stored} | {target.name: target}
    workloads = [
        workload(seen.replica, revisions[name], seen.placement)
        for seen in staying
        if (name := target.name if seen.name in rolling.update else seen.revision) in revisions
        and (seen.size == 1 or seen.placement is not None)
    ]
    for replica in fresh:
        if not multi_node or snapshot.open_placement or replica.name in placement.assigned:
            workloads.append(workload(replica, target, placement.assigned.get(replica.name)))
    if missing_api:
        workloads = []
    in_use = {seen.revision for seen in staying} | {target.name}
    kept = [(n, r) for n, r in stored if r.name in in_use or n > number - _KEPT_REVISIONS]
    if target.name not in {revision.name for _, revision in stored}:
        kept.append((number, target))
    size = engine.profile.hardware.nodes_per_replica
    manifests = [
        *(controller_revision(key, revision, n) for n, revision in kept),
        objects.pool_object(key, target.profile),
        objects.pool_service(key),
    ]
    protected = (len(staying) + len(fresh) - len(placement.unplaced) - rollout.max_unavailable) * size
    if protected > 0:
        manifests.append(objects.disruption_budget(key, pods=protected))
    needs = needs_of(pool, engine.profile.hardware)
    return PoolPlan(
        key=key,
        pool=pool,
        engine=engine,
        target=target,
        update_available=target.render != compiled.render,
        desired=desired,
        observed=observed,
        manifests=tuple(manifests),
        workloads=tuple(workloads),
        surplus=tuple(seen.workload for seen in (*given_up, *moved)),
        unplaced=placement.unplaced,
        promises=tuple(_promise(key, name, domain) for name, domain in placement.assigned.items()),
        domains=placement.domains,
        free_nodes=free_nodes(inventory, needs),
        missing_api=missing_api,
        wanted=frozenset({seen.name for seen in staying} | {replica.name for replica in fresh}),
    )


def desired_replicas(pool: Pool, children: tuple[Child, ...]) -> int:
    """Fixed: what the user wrote. Autoscaled: what the autoscaler wrote into the KimiK3Pool, within the bounds."""
    if pool.autoscaling is None:
        return pool.replicas or 0
    written = next((c.body["spec"].get("replicas") for c in children if c.kind == "KimiK3Pool"), None)
    low, high = pool.autoscaling.min_replicas, pool.autoscaling.max_replicas
    return low if written is None else max(low, min(high, int(written)))


def _stored_revisions(children: tuple[Child, ...]) -> tuple[tuple[int, Revision], ...]:
    """(number, revision) of every stored revision, oldest first."""
    found = [c for c in children if c.kind == "ControllerRevision" and not c.terminating]
    return tuple(sorted(((int(c.body["revision"]), parse_revision(c.body)) for c in found), key=lambda pair: pair[0]))


def _target(compiled: Revision, stored: tuple[tuple[int, Revision], ...]) -> tuple[Revision, int]:
    """The newest stored revision of the same inputs, else the compiled one; and its number.

    An older revision whose inputs are wanted again is stored anew only if its number is not the highest.
    """
    newest = max((number for number, _ in stored), default=0)
    for number, revision in reversed(stored):
        if revision.inputs == compiled.inputs:
            return revision, number
    return compiled, newest + 1


def _claim_template(deployment: Deployment, inventory: Inventory) -> tuple[str, str]:
    """(name of the channel claim template, why it cannot be known)."""
    placement = deployment.spec.placement
    if placement is None or placement.compute_domain is None:
        return names.channel_claim_template(deployment.name), ""
    name = placement.compute_domain.existing
    for domain in inventory.compute_domains:
        if (domain.namespace, domain.name) == (deployment.namespace, name):
            return domain.claim_template, ""
    return f"{name}-channel", f"waits for ComputeDomain {name}, which does not exist in {deployment.namespace}"


def _missing_api(snapshot: Snapshot) -> str:
    missing = [f"{kind} ({api})" for kind, api in GROUP_APIS.items() if kind not in snapshot.apis]
    return " and ".join(missing)


def _why_not_placed(snapshot: Snapshot, missing_api: str, claim_problem: str) -> str:
    if missing_api:
        return f"waits for the API of {missing_api}"
    if claim_problem:
        return claim_problem
    if snapshot.planned_by:
        return f"waits for placement by {snapshot.planned_by}, which plans this cluster's NVLink domains"
    return ""


def _place(
    deployment: Deployment,
    pool: Pool,
    engine: EngineConfig,
    inventory: Inventory,
    fresh: tuple[Replica, ...],
    snapshot: Snapshot,
    blocked: str,
) -> Placement:
    """Place the new groups of a pool, or say of each why not."""
    override = deployment.spec.placement.domain_label if deployment.spec.placement else None
    needs = needs_of(pool, engine.profile.hardware)
    label = domain_label(inventory, needs, override)
    wanted = [replica.name for replica in fresh]
    if label is None:
        looked = ", ".join(engine.profile.hardware.domain_labels)
        candidates = sum(needs.is_candidate(node) for node in inventory.nodes.values())
        none = f"none of the labels {looked} is on all {candidates} nodes of this hardware"
        reason = blocked or (none if candidates else f"no node of the cluster fits profile {engine.profile.name}")
        return Placement({}, dict.fromkeys(wanted, reason), ())
    states = domains(inventory, needs, label, _compute_domain_uid(deployment, inventory, snapshot))
    if blocked:
        return Placement({}, dict.fromkeys(wanted, blocked), states)
    return place(wanted, states, nodes_per_replica=engine.profile.hardware.nodes_per_replica)


def _compute_domain_uid(deployment: Deployment, inventory: Inventory, snapshot: Snapshot) -> str | None:
    """UID of the ComputeDomain that the groups of this deployment use; None while it does not exist."""
    placement = deployment.spec.placement
    if placement is None or placement.compute_domain is None:
        return next((c.uid for c in snapshot.owned() if c.kind == "ComputeDomain"), None)
    used = (deployment.namespace, placement.compute_domain.existing)
    return next((d.uid for d in inventory.compute_domains if (d.namespace, d.name) == used), None)


def _promise(key: PoolKey, replica: str, domain: DomainPlacement) -> Promise:
    return Promise(key.namespace, key.deployment, replica, domain, 2)


def capacity_sentence(plan: PoolPlan) -> str | None:
    """Why replicas of this pool have no place, or None."""
    if plan.unplaced:
        name, reason = min(plan.unplaced.items())
        return f"{_and_more(name, len(plan.unplaced))}: {reason}"
    waiting = [seen for seen in plan.staying if any(pod.unschedulable for pod in seen.pods if not pod.terminating)]
    if not waiting:
        return None
    names_waiting = _and_more(waiting[0].name, len(waiting))
    if plan.engine.profile.hardware.multi_node:
        return f"{names_waiting}: {no_room(plan.domains)}"
    return f"{names_waiting} waits for a free {plan.engine.profile.name} node (free now: {plan.free_nodes})"


def _and_more(name: str, count: int) -> str:
    return f"{name} (and {count - 1} more)" if count > 1 else name

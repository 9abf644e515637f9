"""The pass: from a snapshot to a plan. Pure; the operator, the CLI and the simulation run the same code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kimi_k3_operator.api.base import API_VERSION, Manifest
from kimi_k3_operator.api.parse import Deployment, parse_deployment
from kimi_k3_operator.api.refusal import Refusal
from kimi_k3_operator.api.v1alpha1 import Pool, Rollout
from kimi_k3_operator.compile import objects
from kimi_k3_operator.errors import ProfileError
from kimi_k3_operator.plan.actions import Action, Apply, Create, Delete, Event, Plan, Scale
from kimi_k3_operator.plan.conditions import Facts
from kimi_k3_operator.plan.diff import marked, needs_apply
from kimi_k3_operator.plan.pool import PoolPlan, plan_pool
from kimi_k3_operator.plan.routing import RoutingPlan, plan_routing, unified_contract
from kimi_k3_operator.plan.snapshot import WORKLOAD_KINDS, Child, Snapshot
from kimi_k3_operator.plan.status import deployment_status, pool_status, troubles
from kimi_k3_operator.plan.targets import targets
from kimi_k3_operator.plan.unserved import unserved
from kimi_k3_operator.plan.verification import verify_all
from kimi_k3_operator.profiles.catalog import Catalog
from kimi_k3_operator.profiles.engine import EngineConfig
from kimi_k3_operator.profiles.flags import FlagTable
from kimi_k3_operator.profiles.resolve import resolve


@dataclass(frozen=True)
class Planner:
    """The pass with what never changes while the operator runs."""

    catalog: Catalog
    flags: FlagTable

    def plan(self, snapshot: Snapshot) -> Plan:
        """What to do now and what to say.

        A refused or paused spec changes no child. Readiness gates are judged all the same: an engine that restarts
        under such a spec must come back.
        """
        parsed = parse_deployment(snapshot.body)
        if isinstance(parsed, Deployment):
            refusals = unserved(parsed.spec)
            engines = () if refusals else self.engines(parsed, snapshot.owned())
            if engines and isinstance(engines[0], Refusal):
                refusals = tuple(r for r in engines if isinstance(r, Refusal))
            elif parsed.spec.routing is not None:
                refusals = (*refusals, *unified_contract(e for e in engines if isinstance(e, EngineConfig)))
        else:
            refusals = parsed
        rollout = (parsed.spec.rollout if isinstance(parsed, Deployment) else None) or Rollout()
        verification = verify_all(snapshot.pods, snapshot.probes, allowance=rollout.max_unavailable)
        if refusals or not isinstance(parsed, Deployment):
            refused = Facts(tuple(refusals), (), (), rollout, False, snapshot.planned_by, (), verification)
            return self._report(snapshot, refused)
        pools = self._pools(snapshot, parsed, tuple(e for e in engines if isinstance(e, EngineConfig)))
        facts = Facts(
            refusals=(),
            conflicts=snapshot.conflicts,
            pools=pools,
            rollout=rollout,
            paused=parsed.spec.paused,
            planned_by=snapshot.planned_by,
            troubles=troubles(pools),
            verification=verification,
            routing=plan_routing(parsed, snapshot.owned()),
        )
        report = self._report(snapshot, facts)
        if parsed.spec.paused:
            return report
        promises = tuple(promise for plan in pools for promise in plan.promises)
        stages = (*report.stages, *_stages(snapshot, parsed, pools, facts.routing))
        return replace(report, stages=stages, promises=promises)

    def engines(
        self, deployment: Deployment, children: Iterable[Child]
    ) -> tuple[EngineConfig, ...] | tuple[Refusal, ...]:
        """The engine of each pool in order, or all refusals of all pools."""
        found: list[EngineConfig] = []
        refusals: list[Refusal] = []
        adopted = {c.pool: str(c.body["spec"].get("profile", "")) for c in children if c.kind == "KimiK3Pool"}
        for pool in deployment.spec.pools:
            try:
                version = self._version(pool, adopted.get(pool.name, ""))
                profile = self.catalog.get(pool.profile.name, version)
            except ProfileError as error:
                refusals.append(Refusal("unknown-profile", str(error), f"spec.pools[{pool.name}].profile"))
                continue
            resolved = resolve(deployment.spec, pool, profile, self.flags)
            if isinstance(resolved, EngineConfig):
                found.append(resolved)
            else:
                refusals += resolved
        return tuple(refusals) or tuple(found)

    def _version(self, pool: Pool, adopted: str) -> str:
        """The version the user names, else the one this pool has had so far, else the newest stable one."""
        if pool.profile.version is not None:
            return pool.profile.version
        name, _, version = adopted.partition("/")
        if name == pool.profile.name and version in self.catalog.versions(name):
            return version
        return self.catalog.newest_stable(pool.profile.name).version

    def _pools(
        self, snapshot: Snapshot, deployment: Deployment, engines: tuple[EngineConfig, ...]
    ) -> tuple[PoolPlan, ...]:
        inventory, plans = snapshot.inventory, []
        for pool, engine in zip(deployment.spec.pools, engines, strict=True):
            plan = plan_pool(snapshot, deployment, pool, engine, inventory)
            inventory = inventory.with_promises(plan.promises)
            plans.append(plan)
        return tuple(plans)

    def _report(self, snapshot: Snapshot, facts: Facts) -> Plan:
        generation = int(snapshot.body["metadata"].get("generation", 0))
        previous: Mapping[str, Any] = snapshot.body.get("status") or {}
        status = deployment_status(facts, previous, generation, snapshot.now)
        before = {child.name: child.status for child in snapshot.children if child.kind == "KimiK3Pool"}
        pools = {
            plan.key.name: pool_status(plan, before.get(plan.key.name, {}), generation, snapshot.now)
            for plan in facts.pools
        }
        gates = facts.verification.gates
        return Plan(
            stages=(gates,) if gates else (),
            status=status,
            pool_statuses=pools,
            events=transitions(previous.get("conditions") or (), status["conditions"]),
            targets=targets(snapshot),
        )


def _stages(
    snapshot: Snapshot, deployment: Deployment, pools: tuple[PoolPlan, ...], routing: RoutingPlan | None
) -> tuple[tuple[Action, ...], ...]:
    """First what others refer to, then workloads, then what is no longer wanted."""
    shared = [objects.service_account(deployment.namespace, deployment.name)]
    own_domain = deployment.spec.placement is None or deployment.spec.placement.compute_domain is None
    grouped = [plan for plan in pools if plan.engine.profile.hardware.multi_node]
    if own_domain and any("ComputeDomain" in snapshot.apis for _ in grouped):
        shared.append(objects.compute_domain(deployment.namespace, deployment.name))
    first = [*shared, *(manifest for plan in pools for manifest in plan.manifests)]
    second = [manifest for plan in pools for manifest in plan.workloads]
    for manifest in routing.manifests if routing else ():
        (second if manifest["kind"] == "Deployment" else first).append(manifest)
    live = {child.identity: child for child in snapshot.owned() if not child.terminating}
    owner = owner_reference(snapshot.body)
    desired_of = {plan.key.name: plan for plan in pools}
    stages = (
        tuple(_changes(first, live, owner, desired_of)),
        tuple(_changes(second, live, owner, desired_of)),
        tuple(_deletions(snapshot, first, second, pools)),
    )
    return tuple(stage for stage in stages if stage)


def _changes(
    manifests: Iterable[Manifest],
    live: Mapping[tuple[str, str], Child],
    owner: Manifest,
    pools: Mapping[str, PoolPlan],
) -> Iterable[Action]:
    for manifest in manifests:
        wanted = marked(manifest, owner)
        name = manifest["metadata"]["name"]
        child = live.get((manifest["kind"], name))
        plan = pools[name] if manifest["kind"] == "KimiK3Pool" else None
        if plan is not None and child is None:
            yield Create({**wanted, "spec": {**wanted["spec"], "replicas": plan.desired}})
            continue
        if needs_apply(wanted, child):
            yield Apply(wanted, owned=child is not None)
        fixed = plan is not None and plan.pool.autoscaling is None
        if plan is not None and fixed and child is not None and child.body["spec"].get("replicas") != plan.desired:
            yield Scale(name, plan.desired)


def _deletions(
    snapshot: Snapshot, first: list[Manifest], second: list[Manifest], pools: tuple[PoolPlan, ...]
) -> Iterable[Delete]:
    """Workloads only when they are surplus or their pool is gone; other children when nothing wants them.

    A ComputeDomain goes after the last group and the last pod that may hold one of its channels.
    """
    wanted = {(m["kind"], m["metadata"]["name"]) for m in (*first, *second)}
    surplus = {child.uid for plan in pools for child in plan.surplus}
    names = {plan.pool.name for plan in pools}
    owned = sorted(snapshot.owned(), key=lambda child: child.identity)
    single = {child.replica for child in owned if child.kind == "Deployment"}
    grouped = any(child.kind == "LeaderWorkerSet" for child in owned)
    channels_held = grouped or any(pod.replica not in single for pod in snapshot.pods)
    for child in owned:
        if child.terminating:
            continue
        if child.kind in WORKLOAD_KINDS and child.pool:
            relabelled = child.identity in wanted and child.uid not in surplus
            unwanted = not relabelled and (child.uid in surplus or child.pool not in names)
        elif child.kind == "ComputeDomain":
            unwanted = child.identity not in wanted and not channels_held
        else:
            unwanted = child.identity not in wanted
        if unwanted:
            yield Delete(child.kind, child.name, child.uid)


def owner_reference(body: Mapping[str, Any]) -> Manifest:
    """Every child is owned by the deployment itself, so that an orphan deletion leaves all of them."""
    return {
        "apiVersion": API_VERSION,
        "kind": "KimiK3Deployment",
        "name": body["metadata"]["name"],
        "uid": body["metadata"].get("uid", ""),
        "controller": True,
        "blockOwnerDeletion": True,
    }


def transitions(before: Iterable[Mapping[str, Any]], after: Iterable[Mapping[str, Any]]) -> tuple[Event, ...]:
    """One event for each condition that changed its status or, while not fine, its reason."""
    known = {condition["type"]: condition for condition in before}
    events = []
    for condition in after:
        kind, status, reason = condition["type"], condition["status"], condition["reason"]
        old = known.get(kind)
        if kind in ("Reconciling", "Accepted") and not (kind == "Accepted" and status == "False"):
            continue
        fine = status == ("False" if kind in ("Stalled", "UpdateAvailable") else "True")
        if old is None and (fine or kind == "Ready" or kind == "Available"):
            continue
        if old is not None and old["status"] == status and (fine or old["reason"] == reason):
            continue
        warns = not fine and kind in ("Stalled", "Accepted", "CapacityAvailable")
        events.append(Event("Warning" if warns else "Normal", reason, f"{kind} is {status}: {condition['message']}"))
    return tuple(events)

"""Which replicas have shown that they serve rightly, and which readiness gates to open or close.

An operator must not cause the outage that it guards against (docs/design/0016-verified-readiness.md): a gate opens
after a right answer; an open one is closed by evidence only, never because the operator cannot reach a pod; and checks
never take more than the rollout's allowance out of a pool.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kimi_k3_operator.inventory.model import PodView
from kimi_k3_operator.plan.actions import Gate
from kimi_k3_operator.plan.snapshot import Probe

WRONG_ANSWERS = 3
"""A wrong answer is asked for twice more before it counts."""
TAKEN_OUT = ("WrongAnswer", "Stalled")
"""Reasons of a gate that was open and has been closed by a check."""
_VERIFIED_BY = "verified "


@dataclass(frozen=True)
class Verification:
    """The state of a pool's pods that serve HTTP."""

    gates: tuple[Gate, ...] = ()
    unverified: tuple[tuple[str, str, str], ...] = ()
    """(replica, reason, words) of each pod that runs and has not shown that it serves rightly."""
    suspect: tuple[str, ...] = ()
    """Pods that checks would take out, but for the allowance: rather the checks are wrong."""
    verified: int = 0


def verify(pods: Iterable[PodView], probes: Mapping[str, Probe], *, allowance: int) -> Verification:
    """Judge the pods of one pool; `allowance` is how many checks may have out of it at once."""
    serving = [pod for pod in pods if pod.serves_http and not pod.terminating and pod.containers_ready]
    out = sum(pod.gate == "False" and pod.gate_reason in TAKEN_OUT for pod in serving)
    gates: list[Gate] = []
    unverified: list[tuple[str, str, str]] = []
    suspect: list[str] = []
    verified = 0
    for pod in sorted(serving, key=lambda pod: pod.name):
        probe = probes.get(pod.uid)
        if probe is None or probe.container != pod.container:
            probe = Probe(pod.container)
        is_open = pod.gate == "True" and verified_container(pod) == pod.container
        fault = _fault(probe)
        if is_open or (not pod.gated and probe.passed):
            if fault is None:
                verified += 1
            elif not pod.gated:
                unverified.append((pod.replica, *fault))
            elif out < allowance:
                out += 1
                unverified.append((pod.replica, *fault))
                gates.append(_set(pod, fault))
            else:
                verified += 1
                suspect.append(pod.name)
            continue
        if pod.gated and probe.passed and fault is None:
            verified += 1
            words = _VERIFIED_BY + pod.container
            gates.append(Gate(pod.name, pod.uid, open=True, reason="Verified", message=words))
            continue
        shut = fault or (_held(pod) or (probe.reason, probe.words))
        unverified.append((pod.replica, *shut))
        untold = not pod.gate and shut[0] == Probe.reason  # an unset gate is shut, and nothing is known yet
        if pod.gated and not untold and (pod.gate, pod.gate_reason) != ("False", shut[0]):
            gates.append(_set(pod, shut))
    return Verification(tuple(gates), tuple(unverified), tuple(suspect), verified)


def verify_all(pods: Iterable[PodView], probes: Mapping[str, Probe], *, allowance: int) -> Verification:
    """`verify` for each pool and role of a deployment, taken together. It needs no valid spec."""
    pools: dict[tuple[str, str], list[PodView]] = {}
    for pod in pods:
        pools.setdefault((pod.pool, pod.role), []).append(pod)
    parts = [verify(members, probes, allowance=allowance) for _, members in sorted(pools.items())]
    return Verification(
        gates=tuple(gate for part in parts for gate in part.gates),
        unverified=tuple(found for part in parts for found in part.unverified),
        suspect=tuple(name for part in parts for name in part.suspect),
        verified=sum(part.verified for part in parts),
    )


def verified_container(pod: PodView) -> str:
    """ID of the container that the gate was opened for; an operator that starts anew asks no engine twice."""
    return pod.gate_message.removeprefix(_VERIFIED_BY) if pod.gate_message.startswith(_VERIFIED_BY) else ""


def _fault(probe: Probe) -> tuple[str, str] | None:
    """Evidence against an engine: what it answers is wrong, or its requests do not move."""
    if probe.wrong >= WRONG_ANSWERS:
        return "WrongAnswer", probe.words
    if probe.frozen:
        return "Stalled", probe.words
    return None


def _held(pod: PodView) -> tuple[str, str] | None:
    """A pod that a check took out keeps saying so until it answers rightly."""
    if pod.gate == "False" and pod.gate_reason in TAKEN_OUT:
        return pod.gate_reason, pod.gate_message
    return None


def _set(pod: PodView, why: tuple[str, str]) -> Gate:
    return Gate(pod.name, pod.uid, open=False, reason=why[0], message=why[1][:400])

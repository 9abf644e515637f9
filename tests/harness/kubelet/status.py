"""What a kubelet reports of a pod, from what it knows of the containers. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.harness.kube import Object

OURS = ("PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready")
"""The conditions that a kubelet writes; it leaves all others alone."""


def image_id(image: str) -> str:
    """The image by digest; one that is named by tag gets a digest of its name."""
    return image if "@" in image else f"{image}@sha256:{hashlib.sha256(image.encode()).hexdigest()}"


@dataclass
class Record:
    """One container as it is reported."""

    name: str
    image: str
    init: bool = False
    sidecar: bool = False
    restart_count: int = 0
    container_id: str = ""
    ready: bool = False
    started: bool = False
    state: Object = field(default_factory=lambda: {"waiting": {"reason": "PodInitializing"}})
    last_state: Object = field(default_factory=dict)

    @classmethod
    def of(cls, container: Object, *, init: bool) -> Record:
        return cls(container["name"], container["image"], init, container.get("restartPolicy") == "Always")

    def follow(self, before: Object, now: str) -> None:
        """Continue what is reported of a container that ended unseen, with the kubelet that ran it."""
        self.restart_count = before["restartCount"] + 1
        self.container_id = before["containerID"]
        lost = {"exitCode": 137, "reason": "ContainerStatusUnknown", "message": "its kubelet has ended"}
        began = before["state"].get("running", {}).get("startedAt", now)
        ended = {**lost, "startedAt": began, "finishedAt": now, "containerID": self.container_id}
        self.last_state = {"terminated": before["state"].get("terminated", ended)}

    @property
    def completed(self) -> bool:
        return bool(self.state.get("terminated", {}).get("exitCode", 1) == 0)

    @property
    def initialized(self) -> bool:
        """Whether the containers after it may start."""
        return self.started if self.sidecar else self.completed

    def status(self) -> Object:
        return {
            "name": self.name,
            "image": self.image,
            "imageID": image_id(self.image) if self.container_id else "",
            "containerID": self.container_id,
            "restartCount": self.restart_count,
            "ready": self.completed if self.init and not self.sidecar else self.ready,
            "started": self.started,
            "state": self.state,
            "lastState": self.last_state,
        }


@dataclass(frozen=True)
class Facts:
    """The rest of what a status says; `failed` is set when an init container failed for good."""

    address: str
    host_address: str
    start_time: str
    now: str
    failed: bool = False
    ended: bool = False
    """No container runs and none will."""


def phase(pod: Object, records: Sequence[Record], facts: Facts) -> str:
    mains = [record for record in records if not record.init]
    if facts.failed:
        return "Failed"
    if not all(record.initialized for record in records if record.init) and not facts.ended:
        return "Pending"
    if any("waiting" in record.state and not record.last_state for record in mains):
        return "Failed" if facts.ended else "Pending"
    if not facts.ended:
        return "Running"
    return "Succeeded" if all(record.completed for record in mains) else "Failed"


def _names(records: Sequence[Record]) -> str:
    return " ".join(record.name for record in records)


def _verdicts(pod: Object, records: Sequence[Record], facts: Facts) -> dict[str, tuple[bool, str, str]]:
    """Condition type to (true, reason, message)."""
    inits = [record for record in records if record.init and not record.initialized]
    serving = [record for record in records if not record.init or record.sidecar]
    unready = [record for record in serving if not record.ready]
    current = phase(pod, records, facts)
    over = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}.get(current)
    if over is not None:
        ready = (False, over, "")
    elif unready or inits:
        ready = (False, "ContainersNotReady", f"containers with unready status: [{_names(unready)}]")
    else:
        ready = (True, "", "")
    waiting = f"containers with incomplete status: [{_names(inits)}]"
    return {
        "PodReadyToStartContainers": (bool(facts.address) and not facts.ended, "", ""),
        "Initialized": (
            not inits or facts.ended,
            "ContainersNotInitialized" if inits else "",
            waiting if inits else "",
        ),
        "ContainersReady": ready,
        "Ready": _gates(pod) if ready[0] else ready,
    }


def _gates(pod: Object) -> tuple[bool, str, str]:
    """Ready as the readiness gates have it once all containers are ready."""
    found = {one["type"]: one["status"] for one in pod.get("status", {}).get("conditions", ())}
    problems: list[str] = []
    for gate in pod["spec"].get("readinessGates", ()):
        name = gate["conditionType"]
        if name not in found:
            problems.append(f'corresponding condition of pod readiness gate "{name}" does not exist.')
        elif found[name] != "True":
            problems.append(f'the status of pod readiness gate "{name}" is not "True", but {found[name]}')
    return (False, "ReadinessGatesNotReady", ", ".join(problems)) if problems else (True, "", "")


def pod_status(pod: Object, records: Sequence[Record], facts: Facts) -> Object:
    """The status to send as a strategic merge patch: conditions of others are not in it and so stay."""
    before = {one["type"]: one for one in pod.get("status", {}).get("conditions", ())}
    conditions: list[Object] = []
    for name, (true, reason, message) in _verdicts(pod, records, facts).items():
        state = "True" if true else "False"
        same = before.get(name, {}).get("status") == state
        since = before[name].get("lastTransitionTime") if same else facts.now
        condition = {"type": name, "status": state, "lastTransitionTime": since or facts.now}
        conditions.append({**condition, "reason": reason or None, "message": message or None})
    addresses = {
        "podIP": facts.address,
        "podIPs": [{"ip": facts.address}, {"$patch": "replace"}],
        "hostIP": facts.host_address,
        "hostIPs": [{"ip": facts.host_address}, {"$patch": "replace"}],
    }
    if not facts.address:
        addresses = {key: value for key, value in addresses.items() if key.startswith("host")}
    return {
        "phase": phase(pod, records, facts),
        "startTime": facts.start_time,
        "observedGeneration": pod["metadata"].get("generation", 1),
        **addresses,
        "conditions": conditions,
        "initContainerStatuses": [record.status() for record in records if record.init],
        "containerStatuses": [record.status() for record in records if not record.init],
    }

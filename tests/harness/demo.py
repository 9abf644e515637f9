"""`make demo`: a practice cluster, the operator, one deployment on three kinds of hardware, and a change to it."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.live import Live
from rich.table import Table

from tests.harness import binaries
from tests.harness.kube import Kube, Object
from tests.harness.operator_process import OperatorProcess
from tests.harness.practice import REPOSITORY, PracticeCluster, interrupt

API = "kimik3.dev/v1alpha1"
NAMESPACE = "default"
SAMPLE = REPOSITORY / "samples" / "heterogeneous.yaml"
DEADLINE_SECONDS = 180.0

console = Console(highlight=False)


def say(text: str) -> None:
    console.print(f"[bold]{text}[/bold]" if console.is_terminal else text)


async def ages(kube: Kube, name: str) -> dict[str, float]:
    """Replica to the seconds since its workload was made."""
    selector, now = f"kimik3.dev/deployment={name},kimik3.dev/replica", datetime.now(UTC)
    found: dict[str, float] = {}
    for version, plural in (("apps/v1", "deployments"), ("leaderworkerset.x-k8s.io/v1", "leaderworkersets")):
        for workload in await kube.list(version, plural, NAMESPACE, selector):
            metadata = workload["metadata"]
            born = datetime.fromisoformat(metadata["creationTimestamp"])
            found[metadata["labels"]["kimik3.dev/replica"]] = (now - born).total_seconds()
    return found


async def replicas(kube: Kube, name: str) -> list[tuple[str, Object]]:
    """(hardware, replica status) of every replica, pool by pool in the order of the spec."""
    body = await kube.get(API, "kimik3deployments", name, NAMESPACE)
    found: list[tuple[str, Object]] = []
    for pool in body["spec"]["pools"]:
        status = await kube.find(API, "kimik3pools", f"{name}-{pool['name']}", NAMESPACE)
        entries = ((status or {}).get("status") or {}).get("replicaStatuses") or []
        found += [(pool["profile"]["name"], entry) for entry in entries]
    return found


def table(rows: list[tuple[str, Object]], since: dict[str, float]) -> Table:
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("REPLICA", "HARDWARE", "NODES", "NVLINK DOMAIN", "PHASE", "AGE"):
        made.add_column(column, no_wrap=True)
    for hardware, entry in rows:
        age = f"{since[entry['name']]:.0f}s" if entry["name"] in since else "-"
        domain = entry.get("domain", "-")
        short = f"{domain[:8]}..{domain[-2:]}" if len(domain) > 12 else domain
        made.add_row(entry["name"], hardware, " ".join(entry.get("nodes", ["-"])), short, entry["phase"], age)
    return made


async def watch_until_ready(kube: Kube, name: str, count: int) -> None:
    """Show the replicas as they come up; raises TimeoutError after DEADLINE_SECONDS."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    shown = ""
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        while True:
            rows = await replicas(kube, name)
            ready = sum(entry["phase"] == "Ready" for _, entry in rows)
            line = f"{ready} of {count} replicas ready"
            if console.is_terminal:
                live.update(table(rows, await ages(kube, name)))
            elif line != shown:
                say(line)
                shown = line
            body = await kube.get(API, "kimik3deployments", name, NAMESPACE)
            conditions = {c["type"]: c for c in (body.get("status") or {}).get("conditions") or []}
            fresh = (body.get("status") or {}).get("observedGeneration") == body["metadata"]["generation"]
            if fresh and ready == count and conditions["Ready"]["status"] == "True":
                break
            if time.monotonic() > deadline:
                raise TimeoutError(f"not ready in time: {conditions.get('Ready', {}).get('message', 'no status yet')}")
            await asyncio.sleep(0.3)
    console.print(table(await replicas(kube, name), await ages(kube, name)))


async def show(kubeconfig: Path) -> None:
    body: dict[str, Any] = yaml.safe_load(SAMPLE.read_text())
    body["metadata"]["namespace"] = NAMESPACE
    name = body["metadata"]["name"]
    async with Kube(kubeconfig) as kube:
        say(f"\n$ kubectl apply -f samples/{SAMPLE.name}")
        await kube.apply(body, "kimik3deployments", manager="kubectl")
        await watch_until_ready(kube, name, 7)

        say("\nNow a change: five GB300 replicas in place of four. The others are not touched.")
        pods = {p["metadata"]["uid"] for p in await kube.list("v1", "pods", NAMESPACE)}
        next(pool for pool in body["spec"]["pools"] if pool["name"] == "gb300")["replicas"] = 5
        await kube.apply(body, "kimik3deployments", manager="kubectl")
        await watch_until_ready(kube, name, 8)
        after = {p["metadata"]["uid"] for p in await kube.list("v1", "pods", NAMESPACE)}
        say(f"\n{len(pods & after)} of the {len(pods)} pods from before run on, {len(after - pods)} are new.")


def main() -> int:
    signal.signal(signal.SIGTERM, interrupt)
    if (reason := binaries.missing()) is not None:
        print(reason, file=sys.stderr)
        return 1
    began = time.monotonic()
    say("Starting a practice cluster: a real Kubernetes control plane with simulated GPU nodes.")
    try:
        with PracticeCluster(report=lambda text: console.print(f"  {text}")) as cluster:
            say("Starting the operator.")
            with OperatorProcess(cluster):
                asyncio.run(show(cluster.kubeconfig_for("harness")))
    except KeyboardInterrupt:
        say("stopped")
        return 130
    except TimeoutError as error:
        print(error, file=sys.stderr)
        return 1
    say(f"\nDone in {time.monotonic() - began:.0f} s; everything is stopped. `make cluster` starts one to play with.")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Whom to ask, and what a right answer looks like: from the revision that each pod was made from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from kimi_k3_operator.api.base import Manifest
from kimi_k3_operator.plan.snapshot import Snapshot
from kimi_k3_operator.profiles.blocks import kv_block_tokens
from kimi_k3_operator.profiles.engine import HTTP_PORT


@dataclass(frozen=True)
class Target:
    """One engine container. `block_tokens` is the KV block that the profile computed, 0 where it cannot be known."""

    pod: str
    container: str
    url: str
    served_name: str
    max_model_len: int
    block_tokens: int


def targets(snapshot: Snapshot) -> tuple[Target, ...]:
    """Every pod that serves HTTP and runs, ordered by UID."""
    templates = {
        (child.pool, child.role, child.name.rsplit("-", 1)[-1]): child.body["data"]["leader"]
        for child in snapshot.owned()
        if child.kind == "ControllerRevision" and child.pool
    }
    found = []
    for pod in snapshot.pods:
        template = templates.get((pod.pool, pod.role, pod.revision))
        if template is None or not (pod.serves_http and pod.ip and pod.containers_ready) or pod.terminating:
            continue
        flags = _flags(template)
        host = f"[{pod.ip}]" if ":" in pod.ip else pod.ip
        found.append(
            Target(
                pod=pod.uid,
                container=pod.container,
                url=f"http://{host}:{HTTP_PORT}",
                served_name=flags.get("served-model-name", ""),
                max_model_len=int(flags.get("max-model-len", "0")),
                block_tokens=_block(flags),
            )
        )
    return tuple(sorted(found, key=lambda target: target.pod))


def _flags(template: Manifest) -> dict[str, str]:
    """Flags of the engine's command line, without dashes; a bare flag has an empty value."""
    words = [str(word) for word in template["spec"]["containers"][0].get("args") or ()]
    flags: dict[str, str] = {}
    for word, following in zip(words, [*words[1:], "--"], strict=True):
        if word.startswith("--"):
            flags[word[2:]] = "" if following.startswith("--") else following
    return flags


def _block(flags: Mapping[str, str]) -> int:
    try:
        speculation = json.loads(flags.get("speculative-config", "{}"))
        return kv_block_tokens(
            tensor_parallel=int(flags["tensor-parallel-size"]),
            kv_cache_dtype=flags.get("kv-cache-dtype", "auto"),
            draft_tokens=int(speculation.get("num_speculative_tokens", 0)),
            ssm_dtype=flags.get("mamba-ssm-cache-dtype", "auto"),
        )
    except (KeyError, ValueError):
        return 0

"""Runs in an init container: one sentence when a replica cannot work, before 1.5 TB are read.

Environment: WEIGHTS and DRAFT (folders; DRAFT may be empty), GPUS (how many must be seen), GPU_GLOB (their device
files), IMEX ("1": an IMEX channel must be there), PATIENCE (seconds to look again before failing: a group is recreated
as a whole when an init container fails, so there the check waits).
"""

from __future__ import annotations

import glob
import json
import os
import sys
import time
from collections.abc import Mapping


def problem(env: Mapping[str, str]) -> str | None:
    """The sentence to show, or None."""
    folder = env["WEIGHTS"]
    index = os.path.join(folder, "model.safetensors.index.json")
    if not os.path.isdir(folder) or not os.listdir(folder):
        return f"the weights folder {folder} is empty or missing: check spec.weights"
    if not os.path.isfile(os.path.join(folder, "config.json")) or not os.path.isfile(index):
        return f"{folder} holds no config.json with model.safetensors.index.json: check the path in spec.weights"
    try:
        with open(index, encoding="utf-8") as file:
            shards = sorted(set(json.load(file)["weight_map"].values()))
    except (ValueError, KeyError):
        return f"{index} is damaged: copy the checkpoint again"
    missing = [shard for shard in shards if not _has_content(os.path.join(folder, shard))]
    if missing:
        return (
            f"{len(missing)} of {len(shards)} weight files are missing or empty in {folder}, the first is {missing[0]}"
        )
    draft = env.get("DRAFT")
    if draft and not os.path.isfile(os.path.join(draft, "config.json")):
        return f"the draft folder {draft} holds no config.json: check speculation.draft"
    gpus = len(glob.glob(env["GPU_GLOB"]))
    if gpus != int(env["GPUS"]):
        return f"{gpus} of {env['GPUS']} GPUs are visible in the container: check the node's device plugin"
    if env.get("IMEX") == "1" and not glob.glob("/dev/nvidia-caps-imex-channels/channel*"):
        return "no IMEX channel is in the container: check the ComputeDomain and its driver"
    return None


def _has_content(path: str) -> bool:
    return os.path.isfile(path) and os.path.getsize(path) > 0


def main() -> None:
    deadline = time.monotonic() + float(os.environ.get("PATIENCE", "0"))
    while (sentence := problem(os.environ)) is not None:
        print(sentence, flush=True)
        if time.monotonic() >= deadline:
            with open("/dev/termination-log", "w", encoding="utf-8") as log:
                log.write(sentence)
            sys.exit(1)
        time.sleep(15)


if __name__ == "__main__":
    main()

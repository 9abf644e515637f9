"""Runs in an init container: fill the cache from the hub once, whoever comes first; the others wait for the lock.

Environment: DOWNLOADS (JSON list of {repository, revision, folder}), CACHE (where the cache is mounted), HF_TOKEN.
A folder is complete when its marker exists. Failures are retried here, because a failing init container would have a
multi-node group recreated.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable
from typing import Any

MARKER = ".kimi-k3-complete"


def fill(
    cache: str, item: dict[str, Any], fetch: Callable[..., object], pause: Callable[[float], None] = time.sleep
) -> bool:
    """Fetch one repository into `cache` unless its marker says it is there. Returns whether it was fetched."""
    folder = os.path.join(cache, item["folder"])
    marker = os.path.join(folder, MARKER)
    os.makedirs(folder, exist_ok=True)
    with open(folder + ".lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.path.exists(marker):
            return False
        wait = 10
        while True:
            try:
                fetch(repo_id=item["repository"], revision=item["revision"], local_dir=folder)
                break
            except Exception as error:  # noqa: BLE001 - whatever the hub client raises: say it, wait, try again
                print(f"download of {item['repository']} failed, next try in {wait} s: {error}", flush=True)
                pause(wait)
                wait = min(wait * 2, 300)
        with open(marker + ".part", "w", encoding="utf-8") as file:
            file.write(item["revision"] or "main")
        os.replace(marker + ".part", marker)
        return True


def main() -> None:
    from huggingface_hub import snapshot_download  # part of the engine image

    for item in json.loads(os.environ["DOWNLOADS"]):
        fetched = fill(os.environ["CACHE"], item, snapshot_download)
        print(f"{item['repository']}: {'fetched' if fetched else 'cached'}", flush=True)


if __name__ == "__main__":
    main()

"""preStop of a headless worker: it exits at once on SIGTERM, so it waits here until the leader has drained.

Environment: LWS_LEADER_ADDRESS, LEADER_PORT, LONGEST (seconds). Ends after two refused connections in a row.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable


def wait_for_leader(
    address: str,
    port: int,
    longest: float,
    pause: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Return when the leader's port refused twice, or after `longest` seconds."""
    end, refused = clock() + longest, 0
    while refused < 2 and clock() < end:
        try:
            socket.create_connection((address, port), timeout=5).close()
            refused = 0
        except OSError:
            refused += 1
        pause(2)


if __name__ == "__main__":
    wait_for_leader(os.environ["LWS_LEADER_ADDRESS"], int(os.environ["LEADER_PORT"]), float(os.environ["LONGEST"]))

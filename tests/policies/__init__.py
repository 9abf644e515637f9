"""For each policy an engine that it speaks of, and the nearest one of which it says nothing."""

from tests.policies import hardware, service, speculation

ROWS = [*hardware.ROWS, *service.ROWS, *speculation.ROWS]
"""(policy, engine it speaks of, near miss)."""

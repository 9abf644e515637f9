"""`python -m tests.harness.engine serve MODEL --flags`: what `vllm serve MODEL --flags` is to a client.

Variables beside those of vLLM itself:
FAKE_VLLM_VERSION        the release whose flags are known (0.30.0)
FAKE_VLLM_BIND           listen on this address, whatever --host says
FAKE_VLLM_PACE           b300: the speed of that hardware; without it answers take next to no time
FAKE_VLLM_PREFILL_RATE, FAKE_VLLM_DECODE_RATE, FAKE_VLLM_TRANSFER_RATE   tokens per second
FAKE_VLLM_LOAD_SECONDS   the port opens after so long (0)
FAKE_VLLM_KV_BLOCKS      size of the KV cache (2135)
FAKE_VLLM_RENDEZVOUS     1: rank 0 of a group waits for the other ranks and ends when one leaves
FAKE_VLLM_DRAIN_LISTENS  0: the port is closed while running requests end after SIGTERM
FAKE_VLLM_FAULT          faults that are on from the start, by name, separated by commas
"""

from __future__ import annotations

import sys

from tests.harness.engine.process import run


def main(words: list[str]) -> int:
    if words[:1] != ["serve"]:
        print(__doc__, file=sys.stderr)
        return 2
    return run(words[1:])


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

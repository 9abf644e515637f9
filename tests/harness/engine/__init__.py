"""A stand-in for vLLM serving Kimi K3: no model, but the flags, the API, the metrics and the timing of one.

`FakeEngine` is one engine, `EngineFleet` gives each loopback address of a port an engine of its own, and
`python -m tests.harness.engine serve MODEL --flags` takes the place of `vllm serve` in a container.
"""

from tests.harness.engine.command_line import CommandLineError, Launch, launch_from_command
from tests.harness.engine.engine import FakeEngine
from tests.harness.engine.faults import FAULTS, Fault, FaultOrder, FaultRow
from tests.harness.engine.fleet import EngineFleet, serving
from tests.harness.engine.settings import EngineSettings, KvTransfer, Pace
from tests.harness.engine.transfer import KvRegistry

__all__ = [
    "FAULTS",
    "CommandLineError",
    "EngineFleet",
    "EngineSettings",
    "FakeEngine",
    "Fault",
    "FaultOrder",
    "FaultRow",
    "KvRegistry",
    "KvTransfer",
    "Launch",
    "Pace",
    "launch_from_command",
    "serving",
]

"""The fixtures of the control-plane tests: the data plane is checked behind an operator that runs for real."""

from tests.controlplane.conftest import operator_process, site

__all__ = ["operator_process", "site"]

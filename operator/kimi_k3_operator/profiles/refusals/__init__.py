"""Combinations that must not reach a GPU: one small function each, with the vLLM versions it holds for.

A policy looks at one resolved engine and returns a sentence, or None. A new one is a function in the module of its
subject. The table is documentation as well (docs/reference/refusals.md).
"""

from kimi_k3_operator.profiles.refusals import (  # noqa: F401  registers the rows, in the order of the page
    amd,
    attention,
    cache,
    disaggregation,
    frontend,
    memory,
    moe,
    parallelism,
    speculation,
)
from kimi_k3_operator.profiles.refusals.table import POLICIES, PolicyRow, judge, refusal, warning

__all__ = ["POLICIES", "PolicyRow", "judge", "refusal", "warning"]

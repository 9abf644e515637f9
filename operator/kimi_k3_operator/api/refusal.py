"""A refusal: why a resource is not acted upon, in one sentence a user can act on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Refusal:
    """`id` is stable and documented; `field` is the path the sentence is about, such as `spec.pools[b300].replicas`."""

    id: str
    message: str
    field: str = ""
    fix: str = ""
    link: str = ""

    def __str__(self) -> str:
        sentence = f"{self.field}: {self.message}" if self.field else self.message
        return f"{sentence}; {self.fix}" if self.fix else sentence

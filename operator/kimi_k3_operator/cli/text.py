"""Objects as text: YAML that people review, JSON, and tables. The same input gives the same bytes."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterable, Sequence
from typing import IO, TYPE_CHECKING, Any

import yaml

from kimi_k3_operator.api.base import Manifest

if TYPE_CHECKING:
    from rich.console import Console

_FIRST = ("apiVersion", "kind", "metadata", "spec", "data")
_NOT_PLAIN = re.compile(
    r"|[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?|0[oxb][0-9a-fA-F_]+"
    r"|(?i:y|n|yes|no|on|off|true|false|null|~)"
)
"""Text that has to be quoted; other YAML readers take more than PyYAML for a number or a boolean: `12345e6789`, `y`."""


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        """List items are indented below their key, as most hand-written manifests have them."""
        super().increase_indent(flow, False)


def _scalar(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else '"' if _NOT_PLAIN.fullmatch(text) else ""
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style or None)


_Dumper.add_representer(str, _scalar)


def yaml_document(value: Any) -> str:
    """Block style, no aliases, keys in their order, several lines as a literal block."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=10**6, allow_unicode=True)


def yaml_stream(values: Iterable[Any]) -> str:
    """Documents divided by `---`."""
    return "---\n".join(yaml_document(value) for value in values)


def json_document(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def in_order(manifest: Manifest) -> Manifest:
    """The manifest with its leading keys where a reader looks for them."""
    first = [key for key in _FIRST if key in manifest]
    return {key: manifest[key] for key in (*first, *(key for key in manifest if key not in first))}


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns in the way of kubectl: on a terminal fitted to its width, with bold headings; else plain, never cut."""
    from rich.table import Table
    from rich.text import Text

    terminal = sys.stdout.isatty()
    grid = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold" if terminal else "")
    for heading in headings:
        grid.add_column(heading, overflow="fold", no_wrap=not terminal)
    for row in rows:
        grid.add_row(*(Text(cell) for cell in row))
    buffer = io.StringIO()
    _console(buffer, terminal).print(grid)
    return "".join(f"{line.rstrip()}\n" for line in buffer.getvalue().splitlines())


def _console(target: IO[str], terminal: bool) -> Console:
    """Styles only where standard output is a terminal and NO_COLOR is not set, whatever else the environment says."""
    import os

    from rich.console import Console

    styled = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return Console(
        file=target,
        force_terminal=styled,
        color_system="standard" if styled else None,
        no_color=not styled,
        width=None if terminal else 10_000,
        highlight=False,
        legacy_windows=False,
    )

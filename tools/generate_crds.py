"""Write `crds/*.yaml` from the API models; `--check` only says whether they are up to date (exit code 1 if not)."""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

from kimi_k3_operator.api.crd import crds

FOLDER = Path(__file__).resolve().parent.parent / "crds"


def documents() -> dict[Path, str]:
    """File to content; deterministic."""
    return {
        FOLDER / f"{crd['metadata']['name']}.yaml": yaml.safe_dump(crd, sort_keys=False, width=110, allow_unicode=True)
        for crd in crds()
    }


def main() -> int:
    stale = [path for path, text in documents().items() if not path.exists() or path.read_text() != text]
    if "--check" in sys.argv:
        for path in stale:
            print(f"{path.name} is out of date: run make crds")
        return 1 if stale else 0
    for path, text in documents().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

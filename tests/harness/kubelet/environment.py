"""The variables of a container, and `$(NAME)` in its command."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Any

from tests.harness.kube import Kube, Object
from tests.harness.kubelet.machine import KUBERNETES_ADDRESS, HeldBackError, content

_REFERENCE = re.compile(r"\$\$|\$\(([^()$]*)\)")
_KEYED = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]$")


def expand(text: str, variables: Mapping[str, str]) -> str:
    """`$(NAME)` becomes the variable's value, `$$` a dollar; an unknown name stays as it is written."""

    def value(found: re.Match[str]) -> str:
        return "$" if found[0] == "$$" else variables.get(found[1], found[0])

    return _REFERENCE.sub(value, text)


def field_value(path: str, pod: Object, addresses: Mapping[str, str]) -> str:
    """What a fieldRef gives; `addresses` has status.podIP, status.hostIP and their plural forms."""
    if path in addresses:
        return addresses[path]
    if keyed := _KEYED.match(path):
        return str(pod["metadata"].get(keyed[1], {}).get(keyed[2], ""))
    if path in ("metadata.labels", "metadata.annotations"):
        entries = pod["metadata"].get(path.partition(".")[2], {})
        return "\n".join(f'{key}="{value}"' for key, value in sorted(entries.items()))
    found: Any = pod
    for part in path.split("."):
        found = found.get(part, "") if isinstance(found, dict) else ""
    return str(found)


def texts(found: Object) -> dict[str, str]:
    """The entries of a ConfigMap or Secret as text."""
    if found.get("kind") == "Secret":
        return {key: base64.b64decode(value).decode() for key, value in (found.get("data") or {}).items()}
    return dict(found.get("data") or {})


async def environment(
    kube: Kube, pod: Object, container: Object, image: Mapping[str, str], addresses: Mapping[str, str]
) -> dict[str, str]:
    """All variables. Raises HeldBackError while a ConfigMap, Secret or key is missing."""
    namespace = pod["metadata"]["namespace"]
    found = {"KUBERNETES_SERVICE_HOST": KUBERNETES_ADDRESS, "KUBERNETES_SERVICE_PORT": "443", **image}
    for source in container.get("envFrom", ()):
        for plural, key in (("configmaps", "configMapRef"), ("secrets", "secretRef")):
            if reference := source.get(key):
                optional = bool(reference.get("optional"))
                entries = await content(kube, plural, namespace, reference["name"], optional=optional)
                prefix = source.get("prefix", "")
                found |= {prefix + name: value for name, value in texts(entries or {}).items()}
    for one in container.get("env", ()):
        if "valueFrom" not in one:
            found[one["name"]] = expand(one.get("value", ""), found)
            continue
        value = await _value_from(kube, pod, container, one["valueFrom"], addresses)
        if value is not None:
            found[one["name"]] = value
    return found


async def _value_from(
    kube: Kube, pod: Object, container: Object, source: Object, addresses: Mapping[str, str]
) -> str | None:
    if "fieldRef" in source:
        return field_value(source["fieldRef"]["fieldPath"], pod, addresses)
    if "resourceFieldRef" in source:
        kind, _, resource = source["resourceFieldRef"]["resource"].partition(".")
        return str(container.get("resources", {}).get(kind, {}).get(resource, 0))
    for plural, key in (("configmaps", "configMapKeyRef"), ("secrets", "secretKeyRef")):
        if reference := source.get(key):
            optional = bool(reference.get("optional"))
            entries = await content(kube, plural, pod["metadata"]["namespace"], reference["name"], optional=optional)
            if entries is None:
                return None
            values = texts(entries)
            if reference["key"] in values:
                return values[reference["key"]]
            if not optional:
                what = f"{plural.removesuffix('s')} {pod['metadata']['namespace']}/{reference['name']}"
                raise HeldBackError("CreateContainerConfigError", f"couldn't find key {reference['key']} in {what}")
    return None

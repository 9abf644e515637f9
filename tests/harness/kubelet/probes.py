"""Probes and lifecycle hooks: what they do, and how results become a verdict."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import aiohttp

from tests.harness.kube import Object
from tests.harness.kubelet import grpc_health
from tests.harness.kubelet.process import ContainerProcess


@dataclass
class Verdict:
    """Successes and failures in a row against the thresholds; None until one of them is reached."""

    success_threshold: int = 1
    failure_threshold: int = 3
    value: bool | None = None
    _last: bool | None = None
    _row: int = 0

    @classmethod
    def of(cls, probe: Object) -> Verdict:
        return cls(probe.get("successThreshold", 1), probe.get("failureThreshold", 3))

    def add(self, success: bool) -> bool | None:
        """Count one result; returns the verdict."""
        self._row = self._row + 1 if success == self._last else 1
        self._last = success
        if self._row >= (self.success_threshold if success else self.failure_threshold):
            self.value = success
        return self.value


def port_number(port: int | str, container: Object) -> int:
    """A port by number or by the name that the container gives it."""
    if isinstance(port, int):
        return port
    for one in container.get("ports", ()):
        if one.get("name") == port:
            return int(one["containerPort"])
    return int(port)


async def attempt(
    action: Object, container: Object, process: ContainerProcess, address: str, http: aiohttp.ClientSession
) -> str | None:
    """Perform one httpGet, tcpSocket, grpc or exec action; returns what went wrong, or None."""
    seconds = float(action.get("timeoutSeconds", 1))
    try:
        async with asyncio.timeout(seconds + 1):
            if "exec" in action:
                code, output = await process.run(action["exec"]["command"], seconds)
                return None if code == 0 else f"exit code {code}: {output.strip()[-500:]}"
            async with asyncio.timeout(seconds):
                if "httpGet" in action:
                    return await _http(action["httpGet"], container, address, http)
                if "tcpSocket" in action:
                    target = action["tcpSocket"]
                    port = port_number(target["port"], container)
                    _, writer = await asyncio.open_connection(target.get("host") or address, port)
                    writer.close()
                    return None
                asked = action["grpc"]
                return await grpc_health.check(address, int(asked["port"]), asked.get("service") or "")
    except TimeoutError:
        return f"no answer within {seconds:g} s"
    except (OSError, ValueError, aiohttp.ClientError) as error:
        return str(error) or repr(error)


async def _http(asked: Object, container: Object, address: str, http: aiohttp.ClientSession) -> str | None:
    """Any status from 200 to 399 is a success; certificates are not checked."""
    scheme, host = asked.get("scheme", "HTTP").lower(), asked.get("host") or address
    url = f"{scheme}://{host}:{port_number(asked['port'], container)}{asked.get('path') or '/'}"
    headers = {one["name"]: one["value"] for one in asked.get("httpHeaders", ())}
    headers.setdefault("User-Agent", "kube-probe/1.37")
    insecure = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    insecure.check_hostname, insecure.verify_mode = False, ssl.CERT_NONE
    context = insecure if scheme == "https" else True
    async with http.get(url, headers=headers, ssl=context, allow_redirects=False) as response:
        return None if 200 <= response.status < 400 else f"HTTP probe failed with statuscode: {response.status}"


async def follow(
    probe: Object,
    factor: float,
    ask: Callable[[Object], Awaitable[str | None]],
    tell: Callable[[bool, str], Awaitable[bool]],
) -> None:
    """Ask again and again until `tell`, which gets each verdict and the last problem, returns False."""
    verdict = Verdict.of(probe)
    await asyncio.sleep(probe.get("initialDelaySeconds", 0) * factor)
    while True:
        problem = await ask(probe)
        value = verdict.add(problem is None)
        if value is not None and not await tell(value, problem or ""):
            return
        await asyncio.sleep(probe.get("periodSeconds", 10) * factor)

"""Names and cluster addresses of Services: lines for /etc/hosts, and a TCP proxy per cluster address."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Iterable, Sequence

from tests.harness.controller import key_of
from tests.harness.kube import Object
from tests.harness.kubelet.machine import KUBERNETES_ADDRESS
from tests.harness.kubelet.network import Network, NetworkError

log = logging.getLogger(__name__)

Endpoint = tuple[str, int]
SERVICE_LABEL = "kubernetes.io/service-name"
CHUNK = 65536


def _names(first: str, namespace: str, seen_from: str) -> list[str]:
    """All spellings of `first` (a Service, or host.Service) that resolve in a pod of namespace `seen_from`."""
    ends = [f".{namespace}", f".{namespace}.svc", f".{namespace}.svc.cluster.local"]
    return [first + end for end in ("", *ends)] if seen_from == namespace else [first + end for end in ends]


def _serving(slices: Iterable[Object]) -> list[tuple[Object, Object]]:
    """(slice, endpoint) of the endpoints that are ready; a Service can ask for unready ones to be called ready."""
    return [
        (one, endpoint)
        for one in sorted(slices, key=key_of)
        for endpoint in one.get("endpoints") or ()
        if endpoint.get("conditions", {}).get("ready", True)
    ]


def hosts_lines(services: Iterable[Object], slices: Sequence[Object], seen_from: str) -> str:
    """Lines for /etc/hosts: cluster addresses, and the ready endpoints of headless Services with their host names."""
    lines = []
    for service in sorted(services, key=key_of):
        namespace, name = key_of(service)
        address = service["spec"].get("clusterIP")
        if address and address != "None":
            lines.append(f"{address}\t{' '.join(_names(name, namespace, seen_from))}")
            continue
        for _, endpoint in _serving(of_service(slices, namespace, name)):
            spelt = _names(name, namespace, seen_from)
            if host := endpoint.get("hostname"):
                spelt = [*_names(f"{host}.{name}", namespace, seen_from), *spelt]
            lines += [f"{address}\t{' '.join(spelt)}" for address in endpoint["addresses"]]
    return "".join(f"{line}\n" for line in lines)


def of_service(slices: Iterable[Object], namespace: str, name: str) -> list[Object]:
    return [
        one
        for one in slices
        if one["metadata"].get("namespace") == namespace
        and one["metadata"].get("labels", {}).get(SERVICE_LABEL) == name
    ]


def endpoints_of(slices: Sequence[Object], service: Object, port_name: str) -> list[Endpoint]:
    """Where a port of a Service goes at present."""
    found: list[Endpoint] = []
    for one, endpoint in _serving(of_service(slices, *key_of(service))):
        ports = [port["port"] for port in one.get("ports") or () if (port.get("name") or "") == port_name]
        found += [(address, port) for address in endpoint["addresses"] for port in ports]
    return found


class ServiceProxies:
    """A listener among the pods for each TCP port of each cluster address; a connection goes to the next endpoint."""

    def __init__(self, network: Network, api_server: Endpoint) -> None:
        self._network = network
        self._api_server = api_server
        self._endpoints: dict[Endpoint, list[Endpoint]] = {}
        self._servers: dict[Endpoint, asyncio.Server] = {}
        self._turn = itertools.count()
        self._connections: set[asyncio.Task[None]] = set()

    async def update(self, services: Iterable[Object], slices: Sequence[Object]) -> None:
        wanted: dict[Endpoint, list[Endpoint]] = {(KUBERNETES_ADDRESS, 443): [self._api_server]}
        for service in services:
            address = service["spec"].get("clusterIP")
            if not address or address in ("None", KUBERNETES_ADDRESS):
                continue
            for port in service["spec"].get("ports", ()):
                if port.get("protocol", "TCP") == "TCP":
                    wanted[address, port["port"]] = endpoints_of(slices, service, port.get("name") or "")
        self._endpoints = wanted
        for place in self._servers.keys() - wanted.keys():
            await self._close(place)
        for place in wanted.keys() - self._servers.keys():
            await self._open(place)

    async def _open(self, place: Endpoint) -> None:
        if not any(address == place[0] for address, _ in self._servers):
            self._network.add_service(place[0])

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._connections.add(task)
            try:
                await self._forward(place, reader, writer)
            except asyncio.CancelledError:
                pass
            finally:
                writer.close()
                self._connections.discard(task)

        self._servers[place] = await asyncio.start_server(accept, sock=self._network.listen(*place))

    async def _close(self, place: Endpoint) -> None:
        self._servers.pop(place).close()
        if not any(address == place[0] for address, _ in self._servers):
            with contextlib.suppress(NetworkError):
                self._network.remove_service(place[0])

    async def _forward(self, place: Endpoint, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        endpoints = self._endpoints.get(place, [])
        if not endpoints:
            writer.transport.abort()  # as a Service without endpoints: refused
            return
        try:
            target = endpoints[next(self._turn) % len(endpoints)]
            there_reader, there_writer = await asyncio.open_connection(*target)
        except OSError as error:
            log.debug("service %s: %s", place, error)
            writer.transport.abort()
            return
        try:
            await asyncio.gather(_copy(reader, there_writer), _copy(there_reader, writer))
        finally:
            there_writer.close()

    async def stop(self) -> None:
        for server in self._servers.values():
            server.close()
        self._servers.clear()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while part := await reader.read(CHUNK):
            writer.write(part)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()

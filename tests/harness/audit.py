"""The API server's audit log, parsed as it grows."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})

POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One answered request; `resource` is the plural, `code` 0 where the server gave none.

    A watch has two entries: stage ResponseStarted when it opens, ResponseComplete when it ends.
    """

    verb: str
    group: str
    resource: str
    subresource: str
    namespace: str
    name: str
    user: str
    user_agent: str
    code: int
    timestamp: datetime
    """When the request was received, with time zone UTC."""
    stage: str
    uri: str

    @property
    def is_write(self) -> bool:
        return self.verb in WRITES


def parse_entry(event: dict[str, Any]) -> AuditEntry:
    target = event.get("objectRef") or {}
    return AuditEntry(
        verb=event.get("verb", ""),
        group=target.get("apiGroup", ""),
        resource=target.get("resource", ""),
        subresource=target.get("subresource", ""),
        namespace=target.get("namespace", ""),
        name=target.get("name", ""),
        user=(event.get("user") or {}).get("username", ""),
        user_agent=event.get("userAgent", ""),
        code=int((event.get("responseStatus") or {}).get("code", 0)),
        timestamp=datetime.fromisoformat(event["requestReceivedTimestamp"].replace("Z", "+00:00")),
        stage=event.get("stage", ""),
        uri=event.get("requestURI", ""),
    )


class AuditLog:
    """Reads the file on from where it stopped, so asking often is cheap."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._entries: list[AuditEntry] = []

    def read(self, since: datetime | None = None) -> list[AuditEntry]:
        """All entries received at `since` (aware datetime) or later, in the order in which they were answered."""
        if self.path.exists():
            with self.path.open("rb") as log:
                log.seek(self._offset)
                data = log.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._offset += len(whole)
            self._entries += [parse_entry(json.loads(line)) for line in whole.splitlines() if line.strip()]
        if since is None:
            return list(self._entries)
        return [entry for entry in self._entries if entry.timestamp >= since]


def writes(
    entries: Iterable[AuditEntry], *, user: str | None = None, user_agent: str | None = None
) -> list[AuditEntry]:
    """The writes among `entries`, of one user or of agents that begin with `user_agent` where given."""
    return [
        entry
        for entry in entries
        if entry.is_write
        and (user is None or entry.user == user)
        and (user_agent is None or entry.user_agent.startswith(user_agent))
    ]

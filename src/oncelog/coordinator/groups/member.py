"""One member of a classic group."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

Protocols = tuple[tuple[str, bytes], ...]
"""(name, metadata) of each protocol a member speaks, the one it likes best first."""


@dataclass(slots=True, eq=False)
class Member:
    """What the coordinator knows of a member; times in ms. `joining` and `syncing` are tokens of waiting requests."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    assignment: bytes = b""
    joining: Any = None
    syncing: Any = None
    is_new: bool = False
    """Joined, but not yet part of a generation: may be expired even while it waits."""
    due_ms: int | None = None
    """When the member is gone unless it is heard of."""

    @property
    def is_static(self) -> bool:
        """Whether the member keeps its place over restarts (KIP-345)."""
        return self.group_instance_id is not None

    @property
    def heartbeat_satisfied(self) -> bool:
        """Whether its silence is ours: it waits for an answer. A new member must come back all the same."""
        return not self.is_new and (self.joining is not None or self.syncing is not None)

    def metadata(self, protocol: str) -> bytes:
        """Its metadata for a protocol; KeyError when it does not speak it."""
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        raise KeyError(protocol)

    def vote(self, candidates: Collection[str]) -> str:
        """The one of the candidates that it likes best; KeyError when it speaks none."""
        for name, _ in self.protocols:
            if name in candidates:
                return name
        raise KeyError(f"{self.member_id} speaks none of {sorted(candidates)}")

"""One member of a classic group."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from oncelog.protocol.messages.group_metadata_value import MemberMetadata

Protocols = tuple[tuple[str, bytes], ...]
"""(name, metadata) of each protocol of a member, in its order of preference."""


@dataclass(slots=True, eq=False)
class Member:
    """One member of a classic group. Times are in ms. `joining` and `syncing` are the tokens of waiting requests."""

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
    """The member is not part of a generation yet. It may expire although its JoinGroup waits."""
    due_ms: int | None = None
    """The end of the member's session, on the steady clock."""

    def apply(self, data: MemberMetadata, protocol_type: str, protocol: str) -> None:
        """Apply what a record says about the member."""
        self.group_instance_id = data.group_instance_id
        self.client_id, self.client_host = data.client_id, data.client_host
        self.session_timeout_ms = data.session_timeout
        self.rebalance_timeout_ms = data.rebalance_timeout if data.rebalance_timeout != -1 else data.session_timeout
        self.protocol_type = protocol_type
        self.assignment = data.assignment
        if (protocol, data.subscription) not in self.protocols:
            self.protocols = ((protocol, data.subscription),)

    @property
    def is_static(self) -> bool:
        """Return whether the member keeps its place when its process restarts (KIP-345)."""
        return self.group_instance_id is not None

    @property
    def heartbeat_satisfied(self) -> bool:
        """Return whether the member need not send heartbeats, because its request waits for a response.

        A new member may expire nevertheless.
        """
        return not self.is_new and (self.joining is not None or self.syncing is not None)

    def metadata(self, protocol: str) -> bytes:
        """Return the member's metadata for a protocol. Raises KeyError if the member does not support it."""
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        raise KeyError(protocol)

    def vote(self, candidates: Collection[str]) -> str:
        """Return the member's preferred candidate. Raises KeyError if it supports none of them."""
        for name, _ in self.protocols:
            if name in candidates:
                return name
        raise KeyError(f"member {self.member_id!r} supports none of {sorted(candidates)}")

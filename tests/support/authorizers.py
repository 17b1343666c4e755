"""Authorizers for unit tests."""

from __future__ import annotations

from collections.abc import Callable

from oncelog.net.session import Session
from oncelog.protocol.kinds import AclOperation, AclResource


class Allowing:
    """An authorizer that allows what a function says. `refused` has the operations that were logged as denied."""

    enabled = True

    def __init__(self, allows: Callable[[AclOperation, AclResource], bool]) -> None:
        self._allows = allows
        self.refused: list[tuple[str, AclOperation, AclResource, str]] = []

    def allows(self, session: Session, operation: AclOperation, resource: AclResource, name: str) -> bool:
        return self._allows(operation, resource)

    def allows_some(self, session: Session, operation: AclOperation, resource: AclResource) -> bool:
        return self._allows(operation, resource)

    def denied(self, session: Session, api_key: int, operation: AclOperation, resource: AclResource, name: str) -> None:
        assert not self._allows(operation, resource)
        self.refused.append((session.principal, operation, resource, name))


def refusing(*refused: AclResource) -> Allowing:
    """Return an authorizer that denies every operation on these types of resources."""
    return Allowing(lambda _, resource: resource not in refused)

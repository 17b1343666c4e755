"""Decide by the ACLs of the newest metadata image which clients may do which operations.

Source of the rules: Kafka's `StandardAuthorizer`.
"""

from __future__ import annotations

from oncelog.cluster.acls import NO_ACLS, AclSet, Decision
from oncelog.cluster.image import MetadataCache
from oncelog.net.repeated_lines import RepeatedLines
from oncelog.net.session import Session
from oncelog.protocol.apis import ApiKey
from oncelog.protocol.kinds import AclOperation, AclResource

MOST_REMEMBERED = 10_000
"""The number of decisions that are remembered until the ACLs change."""
LONGEST_REMEMBERED = 249
"""The longest name of a resource whose decisions are remembered. Clients may request names of 32 KB."""
_ANY_NAME = "hardcode"
"""The name for which Kafka first decides whether a client may do an operation on some resource of a type."""

_Question = tuple[str, str, int, int, str | None]
"""Principal, host, operation, resource type, and name. The name is None for some resource of the type."""


class StandardAuthorizer:
    """The authorizer of a broker with access control.

    A decision counts from the moment when the broker has the image with a changed ACL, also on open connections.
    """

    def __init__(
        self, cache: MetadataCache, lines: RepeatedLines, super_users: frozenset[str], *, allow_without_acls: bool
    ) -> None:
        """`super_users` are principals that may do everything.

        `allow_without_acls` is the answer for resources that no ACL selects.
        """
        self._cache = cache
        self._lines = lines
        self._super_users = super_users
        self._allow_without_acls = allow_without_acls
        self._acls: AclSet = NO_ACLS
        """The ACLs of the remembered decisions."""
        self._remembered: dict[_Question, bool] = {}

    @property
    def enabled(self) -> bool:
        """Return True."""
        return True

    def allows(self, session: Session, operation: AclOperation, resource: AclResource, name: str) -> bool:
        """Return whether the client may do the operation on the resource of this name."""
        principal, host = session.principal, session.host
        if principal in self._super_users:
            return True
        question: _Question = principal, host, operation, resource, name
        known = self._known(question)
        if known is not None:
            return known
        decision = self._acls.decide(principal, host, operation, resource, name)
        allowed = decision is Decision.ALLOWED or (decision is Decision.NO_ACLS and self._allow_without_acls)
        if len(name) <= LONGEST_REMEMBERED:
            self._remember(question, allowed)
        return allowed

    def allows_some(self, session: Session, operation: AclOperation, resource: AclResource) -> bool:
        """Return whether the client may do the operation on at least one possible resource of this type.

        As in Kafka, the client may if it may do so on a resource of a fixed name, even if ACLs deny all others.
        """
        if self.allows(session, operation, resource, _ANY_NAME):
            return True
        question: _Question = session.principal, session.host, operation, resource, None
        known = self._known(question)
        if known is not None:
            return known
        allowed = self._acls.allows_some(session.principal, session.host, operation, resource)
        self._remember(question, allowed)
        return allowed

    def _known(self, question: _Question) -> bool | None:
        """Return a remembered decision, or None. Forget all decisions if the ACLs have changed."""
        acls = self._cache.image.acls
        if acls is not self._acls:
            self._acls = acls
            self._remembered.clear()
            return None
        return self._remembered.get(question)

    def _remember(self, question: _Question, allowed: bool) -> None:
        if len(self._remembered) >= MOST_REMEMBERED:
            self._remembered.clear()
        self._remembered[question] = allowed

    def denied(self, session: Session, api_key: int, operation: AclOperation, resource: AclResource, name: str) -> None:
        """Log that a request of the client was denied. The lines of one operation have a bounded rate."""
        shown = name[:LONGEST_REMEMBERED]
        where = f"{resource.name} {shown!r}"
        text = (
            f"denied {operation.name} on {where} to {session.principal} at {session.host}, "
            f"which {ApiKey(api_key).name} needs"
        )
        kind = f"denied {operation.name} on {resource.name}"
        self._lines.log(kind, f"{session.principal} at {session.host} on {shown!r}", text)

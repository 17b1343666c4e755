"""Access control lists: their entries, filters, and the decision whether they allow an operation. No I/O.

The rules are those of Kafka's `StandardAuthorizerData`, `Authorizer.authorizeByResourceType` and `AclBindingFilter`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from enum import Enum
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import NamedTuple

from oncelog.protocol.kinds import AclOperation, AclPermission, AclResource, PatternType

WILDCARD = "*"
"""The literal name that selects every resource, and the host that selects every host."""
EVERYONE = "User:*"
"""The principal that selects every principal."""

_ANY = 1
"""The number on the wire that stands for every resource type, pattern type, operation or permission."""
_EVERY = ((None, _ANY, None, None), (None, int(PatternType.MATCH), None, None))
"""Name, pattern type, principal and host of a filter that selects all."""
_LITERAL, _PREFIXED = int(PatternType.LITERAL), int(PatternType.PREFIXED)

Pattern = tuple[int, int, str]
"""A resource pattern: resource type, pattern type, name."""


class Acl(NamedTuple):
    """One entry. The numbers are those on the wire."""

    resource: int
    name: str
    pattern: int
    principal: str
    host: str
    operation: int
    permission: int

    @property
    def key(self) -> Pattern:
        """Return the resource pattern."""
        return self.resource, self.pattern, self.name


class Unreadable(Enum):
    """Stands for an ACL whose node is damaged."""

    UNREADABLE = "unreadable"


UNREADABLE = Unreadable.UNREADABLE


class AclFilter(NamedTuple):
    """Select ACLs. None selects every name, principal or host. The numbers are those on the wire."""

    resource: int
    name: str | None
    pattern: int
    principal: str | None
    host: str | None
    operation: int
    permission: int

    def selects(self, pattern: Pattern) -> bool:
        """Return whether the filter selects ACLs of this resource pattern."""
        resource, kind, name = pattern
        if self.resource not in (AclResource.ANY, resource):
            return False
        if self.pattern not in (PatternType.ANY, PatternType.MATCH, kind):
            return False
        if self.name is None:
            return True
        if self.pattern != PatternType.MATCH:
            return self.name == name
        if kind == _LITERAL:
            return name in (self.name, WILDCARD)
        return self.name.startswith(name)

    @property
    def selects_all(self) -> bool:
        """Return whether the filter selects every possible ACL."""
        return self[1:5] in _EVERY and {self.resource, self.operation, self.permission} == {_ANY}

    def matches(self, acl: Acl) -> bool:
        """Return whether the filter selects this ACL."""
        return (
            self.selects(acl.key)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (AclOperation.ANY, acl.operation)
            and self.permission in (AclPermission.ANY, acl.permission)
        )


class Decision(Enum):
    """What the ACLs say about an operation."""

    ALLOWED = "allowed"
    DENIED = "denied"
    NO_ACLS = "no ACLs"
    """No ACL of any principal selects the resource, so a setting decides."""


def _bits(*operations: int) -> int:
    return sum(1 << operation for operation in operations)


_EXACTLY = tuple(_bits(AclOperation.ALL) | _bits(operation) for operation in range(max(AclOperation) + 1))
"""By operation: the operations of ACLs that concern it, as bits."""
_IMPLYING = {
    AclOperation.DESCRIBE: _bits(AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER),
    AclOperation.DESCRIBE_CONFIGS: _bits(AclOperation.ALTER_CONFIGS),
}
"""The operations that include another one if they are allowed. If they are denied, the other one is not."""
_ALLOWING = tuple(bits | _IMPLYING.get(AclOperation(number), 0) for number, bits in enumerate(_EXACTLY))
"""By operation: the operations of ALLOW entries that allow it, as bits."""

_Rules = Mapping[tuple[str, str], tuple[int, int]]
"""The entries of one resource pattern: (principal, host) -> the allowed and the denied operations as bits."""


@lru_cache(4096)
def names_of_host(host: str) -> tuple[str, ...]:
    """Return the hosts in ACLs that select this address, with `WILDCARD` last.

    Kafka knows an IPv6 address only in Java's form, `0:0:0:0:0:0:0:1`. The short form `::1` is also accepted.
    """
    text, percent, zone = host.partition("%")
    try:
        address = ip_address(text)
    except ValueError:
        return host, WILDCARD
    if not isinstance(address, IPv6Address):
        return host, WILDCARD
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped), WILDCARD
    long = ":".join(f"{int(part, 16):x}" for part in address.exploded.split(":"))
    return f"{long}{percent}{zone}", f"{address.compressed.partition('%')[0]}{percent}{zone}", WILDCARD


class AclSet:
    """All ACLs at one moment. It never changes.

    If the node of an ACL is damaged, nobody knows what it denied, so each decision is DENIED until it is repaired.

    A decision looks up the resource's name, the wildcard, and one prefix for each length that a prefixed ACL has. So
    it does not depend on the number of ACLs.
    """

    __slots__ = ("_by_node", "_lengths", "_owned", "_patterns", "unreadable")

    def __init__(self) -> None:
        self._by_node: dict[str, Acl] = {}
        self._patterns: dict[Pattern, _Rules] = {}
        self._owned: dict[tuple[int, str], frozenset[Pattern] | set[Pattern]] = {}
        """By resource type and principal: the patterns with an entry for the principal."""
        self._lengths: dict[int, dict[int, int]] = {}
        """By resource type: the lengths of prefixes, with the number of prefixed patterns that have it."""
        self.unreadable: frozenset[str] = frozenset()
        """The names of the damaged nodes."""

    def __len__(self) -> int:
        return len(self._by_node)

    def __iter__(self) -> Iterator[Acl]:
        return iter(self._by_node.values())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AclSet):
            return False
        return self._by_node == other._by_node and self.unreadable == other.unreadable

    def __hash__(self) -> int:
        return len(self)

    @property
    def by_node(self) -> Mapping[str, Acl]:
        """Return the ACLs by the name of their node in the store."""
        return self._by_node

    def candidates(self, chosen: AclFilter) -> Collection[Acl]:
        """Return at least the ACLs that a filter selects; fewer than all if it names one resource."""
        resource, name, pattern = chosen.resource, chosen.name, chosen.pattern
        if name is None or resource == AclResource.ANY or pattern not in (_LITERAL, _PREFIXED):
            return self._by_node.values()
        key = resource, pattern, name
        return tuple(_acls_of(key, self._patterns.get(key, {})))

    def with_changes(self, changes: Mapping[str, Acl | Unreadable | None]) -> AclSet:
        """Return the ACLs after changes, by the names of nodes. The value None removes an ACL."""
        if not changes:
            return self
        after = AclSet()
        after._by_node = dict(self._by_node)
        after._patterns = dict(self._patterns)
        after._owned = dict(self._owned)
        after._lengths = {resource: dict(lengths) for resource, lengths in self._lengths.items()}
        changed: dict[Pattern, dict[tuple[str, str], tuple[int, int]]] = {}
        owned: dict[tuple[int, str], set[Pattern]] = {}
        after.unreadable = self.unreadable.difference(changes) | {
            node for node, acl in changes.items() if acl is UNREADABLE
        }
        for node, changed_to in changes.items():
            acl = None if changed_to is UNREADABLE else changed_to
            before = after._by_node.pop(node, None)
            if acl is not None:
                after._by_node[node] = acl
            for each, present in ((before, False), (acl, True)):
                if each is not None:
                    if each.key not in changed:
                        changed[each.key] = dict(self._patterns.get(each.key, {}))
                    _put(changed[each.key], each, present=present)
        for pattern, rules in changed.items():
            after._replace(pattern, self._patterns.get(pattern, {}), rules, owned)
        for owner, patterns in owned.items():
            if patterns:
                after._owned[owner] = patterns
            else:
                after._owned.pop(owner, None)
        return after

    def _replace(
        self, pattern: Pattern, before: _Rules, rules: _Rules, owned: dict[tuple[int, str], set[Pattern]]
    ) -> None:
        """Set the entries of a pattern, and adapt the other indexes. Collect changed values of `_owned` in `owned`."""
        resource, kind, name = pattern
        if rules:
            self._patterns[pattern] = rules
        else:
            self._patterns.pop(pattern, None)
        if kind == _PREFIXED and bool(before) != bool(rules):
            lengths = self._lengths.setdefault(resource, {})
            count = lengths.pop(len(name), 0) + (1 if rules else -1)
            if count:
                lengths[len(name)] = count
        was, now = {principal for principal, _ in before}, {principal for principal, _ in rules}
        for principal in was ^ now:
            owner = resource, principal
            if owner not in owned:
                owned[owner] = set(self._owned.get(owner, ()))
            (owned[owner].add if principal in now else owned[owner].discard)(pattern)

    def decide(self, principal: str, host: str, operation: int, resource: int, name: str) -> Decision:
        """Return what the ACLs say about an operation of a principal at a host on the resource of this name."""
        if self.unreadable:
            return Decision.DENIED
        patterns = self._patterns
        found = [patterns.get((resource, _LITERAL, name))]
        if name != WILDCARD:
            found.append(patterns.get((resource, _LITERAL, WILDCARD)))
        lengths = self._lengths.get(resource)
        if lengths:
            longest = len(name)
            found += [patterns.get((resource, _PREFIXED, name[:size])) for size in lengths if size <= longest]
        allowing, denying = _ALLOWING[operation], _EXACTLY[operation]
        decision = Decision.NO_ACLS
        hosts = names_of_host(host)
        for rules in found:
            if rules is None:
                continue
            if decision is Decision.NO_ACLS:
                decision = Decision.DENIED
            for owner in (principal, EVERYONE):
                for place in hosts:
                    bits = rules.get((owner, place))
                    if bits is None:
                        continue
                    if bits[1] & denying:
                        return Decision.DENIED
                    if bits[0] & allowing:
                        decision = Decision.ALLOWED
        return decision

    def allows_some(self, principal: str, host: str, operation: int, resource: int) -> bool:
        """Return whether the ACLs allow the operation on at least one possible resource of a type.

        An allowed pattern counts, unless a denied one includes all of it. Implied operations do not count, as in
        Kafka's `authorizeByResourceType`.
        """
        if self.unreadable:
            return False
        wanted = _EXACTLY[operation]
        hosts = names_of_host(host)
        allowed: set[Pattern] = set()
        denied: set[Pattern] = set()
        for owner in (principal, EVERYONE):
            for pattern in self._owned.get((resource, owner), ()):
                rules = self._patterns[pattern]
                for place in hosts:
                    allow, deny = rules.get((owner, place), (0, 0))
                    if deny & wanted:
                        denied.add(pattern)
                    if allow & wanted:
                        allowed.add(pattern)
        wildcard = resource, _LITERAL, WILDCARD
        if wildcard in denied:
            return False
        if wildcard in allowed:
            return True
        lengths = sorted({len(name) for _, kind, name in denied if kind == _PREFIXED})
        for pattern in allowed:
            _, kind, name = pattern
            if kind == _LITERAL and pattern in denied:
                continue
            if not any((resource, _PREFIXED, name[:size]) in denied for size in lengths if size <= len(name)):
                return True
        return False


def _acls_of(pattern: Pattern, rules: _Rules) -> Iterator[Acl]:
    """Yield the ACLs of one resource pattern."""
    resource, kind, name = pattern
    for (principal, host), both in rules.items():
        for permission, bits in zip((AclPermission.ALLOW, AclPermission.DENY), both, strict=True):
            for operation in AclOperation:
                if bits & 1 << operation:
                    yield Acl(resource, name, kind, principal, host, operation, permission)


def _put(rules: dict[tuple[str, str], tuple[int, int]], acl: Acl, *, present: bool) -> None:
    """Add an ACL to the entries of its pattern, or remove it."""
    owner = acl.principal, acl.host
    allowed, denied = rules.pop(owner, (0, 0))
    bit = 1 << acl.operation
    if acl.permission == AclPermission.ALLOW:
        allowed = allowed | bit if present else allowed & ~bit
    else:
        denied = denied | bit if present else denied & ~bit
    if allowed or denied:
        rules[owner] = allowed, denied


NO_ACLS = AclSet()
"""The ACLs of a cluster that has none."""

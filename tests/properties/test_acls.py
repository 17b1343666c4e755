"""ACLs against a slow model: after random changes, each decision is that of a scan over all ACLs.

The number in a test's name is its seed.
"""

from __future__ import annotations

import random

import pytest

from oncelog.cluster.acl_nodes import node_name
from oncelog.cluster.acls import NO_ACLS, Acl, AclFilter, AclSet, Decision
from oncelog.protocol.kinds import AclOperation, AclPermission, AclResource, PatternType

NAMES = ("a", "aa", "ab", "abc", "b", "*", "a*")
PRINCIPALS = ("User:x", "User:y", "User:*", "Group:x")
HOSTS = ("10.0.0.1", "10.0.0.2", "*")
RESOURCES = (AclResource.TOPIC, AclResource.GROUP)
PATTERNS = (PatternType.LITERAL, PatternType.PREFIXED)
OPERATIONS = (*list(AclOperation)[2:12],)
PERMISSIONS = (AclPermission.ALLOW, AclPermission.ALLOW, AclPermission.DENY)
READS = {AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER}


def implied(operation: AclOperation) -> set[AclOperation]:
    if operation is AclOperation.DESCRIBE:
        return READS
    return {AclOperation.ALTER_CONFIGS} if operation is AclOperation.DESCRIBE_CONFIGS else set()


class Model:
    """The rules of Kafka's documentation, one ACL after the other."""

    def __init__(self) -> None:
        self.acls: set[Acl] = set()

    def concerns(self, acl: Acl, principal: str, host: str, operations: set[AclOperation]) -> bool:
        return (
            acl.principal in (principal, "User:*")
            and acl.host in (host, "*")
            and acl.operation in {*operations, AclOperation.ALL}
        )

    def selecting(self, resource: AclResource, name: str) -> list[Acl]:
        return [
            acl
            for acl in self.acls
            if acl.resource == resource
            and (name.startswith(acl.name) if acl.pattern == PatternType.PREFIXED else acl.name in (name, "*"))
        ]

    def decide(self, principal: str, host: str, operation: AclOperation, resource: AclResource, name: str) -> Decision:
        acls = self.selecting(resource, name)
        if not acls:
            return Decision.NO_ACLS
        denied = any(acl.permission == 2 and self.concerns(acl, principal, host, {operation}) for acl in acls)
        wanted = {operation, *implied(operation)}
        allowed = any(acl.permission == 3 and self.concerns(acl, principal, host, wanted) for acl in acls)
        return Decision.ALLOWED if allowed and not denied else Decision.DENIED

    def allows_some(self, principal: str, host: str, operation: AclOperation, resource: AclResource) -> bool:
        mine = [
            acl for acl in self.acls if acl.resource == resource and self.concerns(acl, principal, host, {operation})
        ]
        denied = {(acl.pattern, acl.name) for acl in mine if acl.permission == 2}
        allowed = {(acl.pattern, acl.name) for acl in mine if acl.permission == 3}
        if (PatternType.LITERAL, "*") in denied:
            return False
        for kind, name in allowed:
            if (kind, name) == (PatternType.LITERAL, "*"):
                return True
            below = any(deny == PatternType.PREFIXED and name.startswith(prefix) for deny, prefix in denied)
            if not below and not (kind == PatternType.LITERAL and (kind, name) in denied):
                return True
        return False


def some_acl(rng: random.Random) -> Acl:
    return Acl(
        rng.choice(RESOURCES),
        rng.choice(NAMES),
        rng.choice(PATTERNS),
        rng.choice(PRINCIPALS),
        rng.choice(HOSTS),
        rng.choice(OPERATIONS),
        rng.choice(PERMISSIONS),
    )


def changed(rng: random.Random, model: Model, acls: AclSet) -> AclSet:
    """Add and remove a few random ACLs."""
    changes: dict[str, Acl | None] = {}
    for _ in range(rng.choice((1, 1, 5))):
        if model.acls and rng.random() < 0.4:
            acl = rng.choice(sorted(model.acls))
            model.acls.discard(acl)
            changes[node_name(acl)] = None
        else:
            acl = some_acl(rng)
            model.acls.add(acl)
            changes[node_name(acl)] = acl
    return acls.with_changes(changes)


@pytest.mark.parametrize("seed", range(20))
def test_decisions_are_those_of_a_scan(seed: int) -> None:
    rng = random.Random(seed)
    model, acls = Model(), NO_ACLS
    for _ in range(40):
        before, listed = acls, set(acls)
        acls = changed(rng, model, acls)
        assert set(before) == listed, "an AclSet never changes"
        assert set(acls) == model.acls
        for _ in range(20):
            principal, host = (
                rng.choice(("User:x", "User:y", "User:z", "Group:x")),
                rng.choice(("10.0.0.1", "10.0.0.3")),
            )
            operation, resource = rng.choice(OPERATIONS[1:]), rng.choice(RESOURCES)
            name = rng.choice((*NAMES, "abcd", "c", ""))
            asked = principal, host, operation, resource, name
            assert acls.decide(*asked) is model.decide(*asked), asked
            assert acls.allows_some(*asked[:4]) is model.allows_some(*asked[:4]), asked


@pytest.mark.parametrize("seed", range(10))
def test_all_ways_to_the_same_acls_decide_alike(seed: int) -> None:
    rng = random.Random(seed)
    model, acls = Model(), NO_ACLS
    for _ in range(50):
        acls = changed(rng, model, acls)
    fresh = NO_ACLS.with_changes({node_name(acl): acl for acl in model.acls})
    for principal in PRINCIPALS:
        for operation in OPERATIONS[1:]:
            for resource in RESOURCES:
                asked = principal, "10.0.0.1", operation, resource
                assert acls.allows_some(*asked) is fresh.allows_some(*asked)
                for name in NAMES:
                    assert acls.decide(*asked, name) is fresh.decide(*asked, name)
    empty = acls.with_changes(dict.fromkeys(acls.by_node))
    assert (len(empty), list(empty)) == (0, [])
    assert empty.decide("User:x", "10.0.0.1", AclOperation.READ, AclResource.TOPIC, "a") is Decision.NO_ACLS


@pytest.mark.parametrize("seed", range(20))
def test_filters_select_the_acls_of_their_definition(seed: int) -> None:
    rng = random.Random(seed)
    model, acls = Model(), NO_ACLS
    for _ in range(40):
        acls = changed(rng, model, acls)
    for _ in range(200):
        chosen = AclFilter(
            rng.choice((1, 2, 3)),
            rng.choice((None, *NAMES)),
            rng.choice((1, 2, 3, 4)),
            rng.choice((None, *PRINCIPALS)),
            rng.choice((None, *HOSTS)),
            rng.choice((1, *OPERATIONS)),
            rng.choice((1, 2, 3)),
        )
        found = {acl for acl in acls.candidates(chosen) if chosen.matches(acl)}
        assert found == {acl for acl in model.acls if selected(chosen, acl)}, chosen


def selected(chosen: AclFilter, acl: Acl) -> bool:
    """Return whether a filter selects an ACL, by the documentation of `ResourcePatternFilter`."""
    if chosen.resource not in (1, acl.resource) or (chosen.pattern in (3, 4) and chosen.pattern != acl.pattern):
        return False
    if chosen.name is not None:
        if chosen.pattern == PatternType.MATCH:
            prefix = acl.pattern == PatternType.PREFIXED and chosen.name.startswith(acl.name)
            literal = acl.pattern == PatternType.LITERAL and acl.name in (chosen.name, "*")
            if not (prefix or literal):
                return False
        elif chosen.name != acl.name:
            return False
    return (
        (chosen.principal is None or chosen.principal == acl.principal)
        and (chosen.host is None or chosen.host == acl.host)
        and chosen.operation in (1, acl.operation)
        and chosen.permission in (1, acl.permission)
    )

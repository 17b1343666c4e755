"""Several changes of one SCRAM user in a request (KIP-554). Apache Kafka is the control."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from oncelog.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from support.wire import Wire

TWICE = (ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request")
MISSING = (ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist")
UNKNOWN = (ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
FEW = (ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
DONE = (ErrorCode.NONE, None)

CASES: dict[str, tuple[list[int], list[tuple[int, int]], tuple[ErrorCode, str | None], dict[int, int]]] = {
    # the mechanisms to delete, those to set with their iterations, the answer, and what the user has then
    "delete": ([1], [], DONE, {}),
    "delete a missing one": ([2], [], MISSING, {1: 4096}),
    "set": ([], [(2, 5000)], DONE, {1: 4096, 2: 5000}),
    "set the same twice": ([], [(2, 5000), (2, 6000)], TWICE, {1: 4096}),
    "set two mechanisms": ([], [(1, 5000), (2, 5000)], TWICE, {1: 4096}),
    "set three times": ([], [(1, 5000), (2, 5000), (1, 6000)], TWICE, {1: 4096}),
    "delete and set": ([1], [(1, 5000)], TWICE, {1: 4096}),
    "delete one and set the other": ([1], [(2, 5000)], TWICE, {1: 4096}),
    "delete twice": ([1, 1], [], TWICE, {1: 4096}),
    "delete a missing one first": ([2, 1], [], MISSING, {1: 4096}),
    "delete a missing one last": ([1, 2], [], TWICE, {1: 4096}),
    "delete a missing one and set": ([2], [(1, 5000)], MISSING, {1: 4096}),
    "delete for an unknown mechanism first": ([9, 1], [], UNKNOWN, {1: 4096}),
    "set an illegal one first": ([], [(1, 1), (2, 5000)], FEW, {1: 4096}),
    "set an illegal one last": ([], [(1, 5000), (2, 1)], TWICE, {1: 4096}),
}


def alter(wire: Wire, deletions: list[tuple[str, int]], upsertions: list[tuple[str, int, int]]) -> dict[str, Any]:
    """Change credentials, and return error and message by user."""
    gone = [ScramCredentialDeletion(name=user, mechanism=mechanism) for user, mechanism in deletions]
    new = [
        ScramCredentialUpsertion(
            name=user, mechanism=mechanism, iterations=iterations, salt=b"salt", salted_password=b"p" * 32
        )
        for user, mechanism, iterations in upsertions
    ]
    results = wire.call(AlterUserScramCredentialsRequest(deletions=gone, upsertions=new)).results
    assert len({each.user for each in results}) == len(results)
    return {each.user: (each.error_code, each.error_message) for each in results}


def described(wire: Wire, user: str) -> dict[int, int]:
    [result] = wire.call(DescribeUserScramCredentialsRequest(users=[UserName(name=user)])).results
    return {each.mechanism: each.iterations for each in result.credential_infos}


@pytest.fixture
def user(wire: Wire, name: str) -> Iterator[str]:
    """Return a user with a credential for SCRAM-SHA-256. Delete it at the end."""
    assert alter(wire, [], [(name, 1, 4096)]) == {name: DONE}
    yield name
    for mechanism in described(wire, name):
        alter(wire, [(name, mechanism)], [])


@pytest.mark.parametrize("case", CASES)
def test_user_is_changed_once_in_a_request_or_not_at_all(wire: Wire, user: str, case: str) -> None:
    deletions, upsertions, expected, after = CASES[case]
    answers = alter(wire, [(user, each) for each in deletions], [(user, *each) for each in upsertions])
    assert answers == {user: expected}
    assert described(wire, user) == after


def test_other_users_of_the_request_are_changed(wire: Wire, user: str) -> None:
    other = f"{user}-other"
    answers = alter(wire, [], [(user, 1, 5000), (other, 1, 5000), (user, 2, 5000)])
    assert answers == {user: TWICE, other: DONE}
    assert (described(wire, user), described(wire, other)) == ({1: 4096}, {1: 5000})
    assert alter(wire, [(other, 1)], []) == {other: DONE}

"""ACLs, quotas and SCRAM credentials on a broker that has none of them (KIP-140, 546, 554)."""

from __future__ import annotations

import pytest

from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from oncelog.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from oncelog.protocol.messages.describe_acls import DescribeAclsRequest
from oncelog.protocol.messages.describe_client_quotas import ComponentData, DescribeClientQuotasRequest
from oncelog.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from support.wire import Wire

ANY = 1
"""Of resource type, pattern type, operation and permission."""
EXACT, DEFAULT, SPECIFIED = range(3)
"""How a quota filter matches a name."""
ACL_VERSIONS = pytest.mark.parametrize("version", [1, 2, 3])


@ACL_VERSIONS
def test_describe_acls_says_that_security_is_disabled(wire: Wire, version: int) -> None:
    request = DescribeAclsRequest(
        resource_type_filter=ANY,
        resource_name_filter=None,
        pattern_type_filter=ANY,
        principal_filter=None,
        host_filter=None,
        operation=ANY,
        permission_type=ANY,
    )
    answer = wire.call(request, version)
    assert (answer.error_code, answer.resources) == (ErrorCode.SECURITY_DISABLED, [])
    assert answer.error_message == "No Authorizer is configured on the broker"


@ACL_VERSIONS
def test_create_acls_says_that_security_is_disabled_for_each_acl(wire: Wire, version: int) -> None:
    acl = AclCreation(
        resource_type=2, resource_name="any", principal="User:a", host="*", operation=3, permission_type=3
    )
    answer = wire.call(CreateAclsRequest(creations=[acl, acl]), version)
    refused = (ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
    assert [(each.error_code, each.error_message) for each in answer.results] == [refused] * 2


@ACL_VERSIONS
def test_delete_acls_says_that_security_is_disabled_for_each_filter(wire: Wire, version: int) -> None:
    every = DeleteAclsFilter(resource_type_filter=2, operation=ANY, permission_type=ANY)
    answer = wire.call(DeleteAclsRequest(filters=[every, every]), version)
    refused = (ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.", [])
    found = [(each.error_code, each.error_message, each.matching_acls) for each in answer.filter_results]
    assert found == [refused] * 2


@pytest.mark.parametrize("version", [0, 1])
def test_there_are_no_client_quotas(wire: Wire, version: int) -> None:
    filters = [
        [],
        [ComponentData(entity_type="user", match_type=SPECIFIED, match=None)],
        [ComponentData(entity_type="ip", match_type=DEFAULT, match=None)],
        [
            ComponentData(entity_type="user", match_type=EXACT, match="a"),
            ComponentData(entity_type="client-id", match_type=DEFAULT, match=None),
        ],
    ]
    for components in filters:
        for strict in (False, True):
            answer = wire.call(DescribeClientQuotasRequest(components=components, strict=strict), version)
            assert (answer.error_code, answer.entries) == (0, [])


@pytest.mark.parametrize(
    ("components", "error", "message"),
    [
        ([("", EXACT, "a")], "INVALID_REQUEST", "Invalid empty entity type."),
        (
            [("user", EXACT, None)],
            "INVALID_REQUEST",
            "Request specified MATCH_TYPE_EXACT, but set match string to null.",
        ),
        (
            [("user", DEFAULT, "a")],
            "INVALID_REQUEST",
            "Request specified MATCH_TYPE_DEFAULT, but also specified a match string.",
        ),
        (
            [("user", SPECIFIED, "a")],
            "INVALID_REQUEST",
            "Request specified MATCH_TYPE_SPECIFIED, but also specified a match string.",
        ),
        ([("user", 9, None)], "INVALID_REQUEST", "Unknown match type 9"),
        ([("group", EXACT, "a")], "UNSUPPORTED_VERSION", "Unsupported entity type group"),
        (
            [("user", EXACT, "a"), ("user", EXACT, "b")],
            "INVALID_REQUEST",
            "Entity type user cannot appear more than once in the filter.",
        ),
        (
            [("user", EXACT, "a"), ("ip", EXACT, "b")],
            "INVALID_REQUEST",
            "Invalid entity filter component combination. IP filter component should not be used with user or "
            "clientId filter component.",
        ),
    ],
)
def test_invalid_quota_filter_is_rejected(
    wire: Wire, components: list[tuple[str, int, str | None]], error: str, message: str
) -> None:
    wanted = [ComponentData(entity_type=kind, match_type=how, match=match) for kind, how, match in components]
    answer = wire.call(DescribeClientQuotasRequest(components=wanted))
    assert (answer.error_code, answer.error_message, answer.entries) == (ErrorCode[error], message, None)


def test_no_user_has_scram_credentials(wire: Wire) -> None:
    for users in (None, []):
        answer = wire.call(DescribeUserScramCredentialsRequest(users=users))
        assert (answer.error_code, answer.results) == (0, [])
    request = DescribeUserScramCredentialsRequest(users=[UserName(name=name) for name in ("a", "b", "a")])
    found = {each.user: (each.error_code, each.error_message) for each in wire.call(request).results}
    assert found == {
        "a": (
            ErrorCode.DUPLICATE_RESOURCE,
            "Cannot describe SCRAM credentials for the same user twice in a single request: a",
        ),
        "b": (ErrorCode.RESOURCE_NOT_FOUND, "Attempt to describe a user credential that does not exist: b"),
    }

"""DescribeUserScramCredentials: list the users that have SCRAM credentials (KIP-554)."""

from __future__ import annotations

from oncelog.protocol.schema import Message, array, int8, int16, int32, string


class UserName(Message):
    """`Users` of DescribeUserScramCredentialsRequest."""

    name: str = string()


class DescribeUserScramCredentialsRequest(Message, api_key=50, versions=(0, 0), flexible=0):
    """The request. Without users, it means all of them."""

    users: list[UserName] | None = array(UserName, nullable=0)


class CredentialInfo(Message):
    """`CredentialInfos` of a result."""

    mechanism: int = int8()
    iterations: int = int32()


class DescribeUserScramCredentialsResult(Message):
    """`Results` of DescribeUserScramCredentialsResponse."""

    user: str = string()
    error_code: int = int16()
    error_message: str | None = string(nullable=0, default=None)
    credential_infos: list[CredentialInfo] = array(CredentialInfo)


class DescribeUserScramCredentialsResponse(Message, api_key=50, versions=(0, 0), flexible=0):
    """The response."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=0, default=None)
    results: list[DescribeUserScramCredentialsResult] = array(DescribeUserScramCredentialsResult)

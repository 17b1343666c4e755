"""AlterUserScramCredentials: set or remove the SCRAM credentials of users (KIP-554)."""

from __future__ import annotations

from oncelog.protocol.schema import Message, array, data, int8, int16, int32, string


class ScramCredentialDeletion(Message):
    """`Deletions` of AlterUserScramCredentialsRequest."""

    name: str = string()
    mechanism: int = int8()


class ScramCredentialUpsertion(Message):
    """`Upsertions` of AlterUserScramCredentialsRequest. Its `repr` hides the password."""

    name: str = string()
    mechanism: int = int8()
    iterations: int = int32()
    salt: bytes = data()
    salted_password: bytes = data()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r}, mechanism={self.mechanism}, iterations={self.iterations})"


class AlterUserScramCredentialsRequest(Message, api_key=51, versions=(0, 0), flexible=0):
    """The request."""

    deletions: list[ScramCredentialDeletion] = array(ScramCredentialDeletion)
    upsertions: list[ScramCredentialUpsertion] = array(ScramCredentialUpsertion)


class AlterUserScramCredentialsResult(Message):
    """`Results` of AlterUserScramCredentialsResponse."""

    user: str = string()
    error_code: int = int16()
    error_message: str | None = string(nullable=0, default=None)


class AlterUserScramCredentialsResponse(Message, api_key=51, versions=(0, 0), flexible=0):
    """The response."""

    throttle_time_ms: int = int32()
    results: list[AlterUserScramCredentialsResult] = array(AlterUserScramCredentialsResult)

"""Change and describe the SCRAM users of a cluster with a `ClusterClient` (KIP-554)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

from oncelog import errors
from oncelog.client.admin._shared import names
from oncelog.client.discovery.cluster import ClusterClient
from oncelog.client.notebooks import in_notebooks
from oncelog.client.response_errors import raise_for_error, require_answers
from oncelog.net.sasl import MIN_ITERATIONS, MOST_ITERATIONS, SCRAM_HASHES, new_salt
from oncelog.net.threads import in_thread
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.kinds import SCRAM_MECHANISMS, SCRAM_NAMES
from oncelog.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from oncelog.protocol.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest, UserName


@in_notebooks()
class ScramCredentialInfo(NamedTuple):
    """A SCRAM credential of a user: the mechanism, such as "SCRAM-SHA-512", and how often the password is hashed.

    oncelog lists a damaged credential with 0 `iterations`: nobody can log in with it. Delete it, or set the password.
    """

    mechanism: str
    iterations: int = MIN_ITERATIONS


@in_notebooks(hide=("password", "salt"))
class UserScramCredentialUpsertion(NamedTuple):
    """Create a user's credential, or change its password (Kafka's `UserScramCredentialUpsertion`).

    `mechanism` is "SCRAM-SHA-256" or "SCRAM-SHA-512". The client hashes the password `iterations` times (4096 to
    16,384) with `salt`, by default a random one, and sends only the result. `repr` hides password and salt.
    """

    user: str
    password: str
    mechanism: str = "SCRAM-SHA-512"
    iterations: int = MIN_ITERATIONS
    salt: bytes | None = None

    def __repr__(self) -> str:
        shown = f"user={self.user!r}, mechanism={self.mechanism!r}, iterations={self.iterations}"
        return f"UserScramCredentialUpsertion({shown})"


@in_notebooks()
class UserScramCredentialDeletion(NamedTuple):
    """Delete a user's credential for a mechanism (Kafka's `UserScramCredentialDeletion`)."""

    user: str
    mechanism: str = "SCRAM-SHA-512"


Change = UserScramCredentialUpsertion | UserScramCredentialDeletion


async def alter_user_scram_credentials(cluster: ClusterClient, changes: Change | Iterable[Change]) -> None:
    """Create, change and delete SCRAM credentials (Kafka's AlterUserScramCredentials).

    A call may have one change of each user. If the broker rejects a user, it changes the others nevertheless. Then this
    raises the error of the first rejected one: RequestError (RESOURCE_NOT_FOUND,
    DUPLICATE_RESOURCE, UNACCEPTABLE_CREDENTIAL) or AuthorizationError. Raises ConfigError for an unknown
    mechanism or number of iterations.
    """
    wanted: list[Change] = (
        [changes] if isinstance(changes, (UserScramCredentialUpsertion, UserScramCredentialDeletion)) else list(changes)
    )
    deletions, upsertions = [], []
    for change in wanted:
        number = _number(change.mechanism)
        if isinstance(change, UserScramCredentialDeletion):
            deletions.append(ScramCredentialDeletion(name=change.user, mechanism=number))
        else:
            upsertions.append(await in_thread(partial(_upsertion, change, number)))
    if not wanted:
        return
    request = AlterUserScramCredentialsRequest(deletions=deletions, upsertions=upsertions)
    response = await cluster.call_controller(request)
    require_answers(
        {change.user for change in wanted}, [result.user for result in response.results], "AlterUserScramCredentials"
    )
    for result in response.results:
        raise_for_error(result, f"user {result.user!r}")


async def describe_user_scram_credentials(
    cluster: ClusterClient, users: str | Iterable[str] | None = None
) -> dict[str, list[ScramCredentialInfo]]:
    """Return the SCRAM credentials of each user, by name (Kafka's DescribeUserScramCredentials).

    Without `users`, return all users. The result lacks users that have no credential. No password is returned.
    Raises AuthorizationError.
    """
    wanted = None if users is None else list(dict.fromkeys(names(users)))
    if wanted == []:
        return {}
    request = DescribeUserScramCredentialsRequest(
        users=None if wanted is None else [UserName(name=name) for name in wanted]
    )
    response = await cluster.call_any(request)
    if response.error_code:
        raise_for_error(response, "SCRAM users")
    require_answers(wanted or (), [result.user for result in response.results], "DescribeUserScramCredentials")
    found = {}
    for result in response.results:
        if result.error_code == ErrorCode.RESOURCE_NOT_FOUND:
            continue
        raise_for_error(result, f"user {result.user!r}")
        found[result.user] = sorted(
            ScramCredentialInfo(_name(info.mechanism), info.iterations) for info in result.credential_infos
        )
    return dict(sorted(found.items()))


def _upsertion(change: UserScramCredentialUpsertion, number: int) -> ScramCredentialUpsertion:
    if not MIN_ITERATIONS <= change.iterations <= MOST_ITERATIONS:
        raise errors.ConfigError(
            f"iterations must be between {MIN_ITERATIONS} and {MOST_ITERATIONS}, not {change.iterations}"
        )
    if not change.password:
        raise errors.ConfigError(f"the password of user {change.user!r} must not be empty")
    salt = new_salt() if change.salt is None else change.salt
    salted = hashlib.pbkdf2_hmac(SCRAM_HASHES[change.mechanism], change.password.encode(), salt, change.iterations)
    return ScramCredentialUpsertion(
        name=change.user, mechanism=number, iterations=change.iterations, salt=salt, salted_password=salted
    )


def _number(mechanism: str) -> int:
    if mechanism not in SCRAM_MECHANISMS:
        raise errors.ConfigError(f"mechanism must be one of {', '.join(SCRAM_MECHANISMS)}, not {mechanism!r}")
    return SCRAM_MECHANISMS[mechanism]


def _name(number: int) -> str:
    """Return the name of a mechanism. A newer broker may have others."""
    return SCRAM_NAMES.get(number, f"unknown_{number}")

"""DescribeUserScramCredentials and AlterUserScramCredentials (KIP-554).

Source: Kafka's `ScramControlManager` and `ScramImage.describe`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from oncelog.broker.logins import readable_credential
from oncelog.broker.metadata.settings import SettingsAdministration
from oncelog.broker.requests.context import RequestContext
from oncelog.broker.requests.operations import CLUSTER
from oncelog.broker.requests.services import Handler, HandlerServices
from oncelog.broker.turns import Yielder
from oncelog.cluster.image import MetadataCache
from oncelog.cluster.users import check_deletions
from oncelog.net.sasl import MIN_ITERATIONS, MOST_ITERATIONS
from oncelog.net.sasl_server import salted_credential
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.kinds import SCRAM_MECHANISMS, SCRAM_NAMES, AclOperation
from oncelog.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from oncelog.protocol.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)

Change = ScramCredentialDeletion | ScramCredentialUpsertion


async def handle_alter(
    settings: SettingsAdministration,
    cache: MetadataCache,
    request: AlterUserScramCredentialsRequest,
    ctx: RequestContext,
) -> AlterUserScramCredentialsResponse:
    """Make the change of each user, or return the user's error. A user with several changes gets no change.

    The error of such a user is that of the first illegal change, or DUPLICATE_RESOURCE.
    """
    ctx.authorize(AclOperation.ALTER, *CLUSTER)
    by_user: dict[str, list[Change]] = {}
    asked: tuple[Change, ...] = (*request.deletions, *request.upsertions)
    for change in asked:
        by_user.setdefault(change.name, []).append(change)
    yielder = Yielder()
    results = []
    for user, (first, *others) in by_user.items():
        await yielder.next()
        result = AlterUserScramCredentialsResult(user=user)
        try:
            wanted = _wanted(first)
            if others:
                check_deletions(cache.image.user_configs.get(user, {}), wanted)
                message = "A user credential cannot be altered twice in the same request"
                raise ProtocolError(ErrorCode.DUPLICATE_RESOURCE, message)
            await settings.alter_user(user, wanted)
        except ProtocolError as error:
            result.error_code, result.error_message = error.code, str(error)
        results.append(result)
    return AlterUserScramCredentialsResponse(results=results)


def _wanted(change: Change) -> dict[str, str | None]:
    """Return the credential by its mechanism, None to remove it. Raises the error of an illegal change."""
    mechanism = SCRAM_NAMES.get(change.mechanism)
    if not change.name:
        raise ProtocolError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if mechanism is None:
        raise ProtocolError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    if isinstance(change, ScramCredentialDeletion):
        return {mechanism: None}
    _check(change)
    made = salted_credential(mechanism, bytes(change.salted_password), bytes(change.salt), change.iterations)
    return {mechanism: made.encode()}


def _check(change: ScramCredentialUpsertion) -> None:
    if change.iterations < MIN_ITERATIONS:
        raise ProtocolError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if change.iterations > MOST_ITERATIONS:
        raise ProtocolError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    if not change.salt or not change.salted_password:
        raise ProtocolError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Salt and password must not be empty")


async def handle_describe(
    cache: MetadataCache, request: DescribeUserScramCredentialsRequest, ctx: RequestContext
) -> DescribeUserScramCredentialsResponse:
    """Return mechanisms and iterations of each user. A user without credentials gets RESOURCE_NOT_FOUND, one that the
    request names twice DUPLICATE_RESOURCE. A credential that is damaged has 0 iterations.
    """
    ctx.authorize(AclOperation.DESCRIBE, *CLUSTER)
    users = cache.image.user_configs
    yielder = Yielder()
    results: dict[str, DescribeUserScramCredentialsResult] = {}
    for user in [named.name for named in request.users] if request.users else sorted(users):
        await yielder.next()
        infos = _infos(user, users.get(user, {}))
        result = DescribeUserScramCredentialsResult(user=user, credential_infos=infos)
        if user in results:
            message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}"
            result = DescribeUserScramCredentialsResult(
                user=user, error_code=ErrorCode.DUPLICATE_RESOURCE, error_message=message
            )
        elif not infos:
            result.error_code = ErrorCode.RESOURCE_NOT_FOUND
            result.error_message = f"Attempt to describe a user credential that does not exist: {user}"
        results[user] = result
    return DescribeUserScramCredentialsResponse(results=list(results.values()))


def _infos(user: str, configs: Mapping[str, str]) -> list[CredentialInfo]:
    """Return the user's credentials. A damaged one is listed, too, so that an administrator can find and delete it."""
    found = []
    for name, number in SCRAM_MECHANISMS.items():
        if name in configs:
            credential = readable_credential(user, name, configs[name])
            found.append(CredentialInfo(mechanism=number, iterations=credential.iterations if credential else 0))
    return found


def bind_alter(services: HandlerServices) -> Handler:
    """Return the handler of AlterUserScramCredentials."""
    return partial(handle_alter, services.settings, services.cache)


def bind_describe(services: HandlerServices) -> Handler:
    """Return the handler of DescribeUserScramCredentials."""
    return partial(handle_describe, services.cache)

"""DescribeUserScramCredentials and AlterUserScramCredentials (KIP-554).

Source: Kafka's `ScramControlManager` and `ScramImage.describe`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from oncelog.broker.metadata.settings import SettingsAdministration
from oncelog.broker.requests.context import RequestContext
from oncelog.broker.requests.operations import CLUSTER
from oncelog.broker.requests.services import Handler, HandlerServices
from oncelog.broker.turns import Yielder
from oncelog.cluster.image import MetadataCache
from oncelog.net.sasl import MIN_ITERATIONS, MOST_ITERATIONS
from oncelog.net.sasl_server import ScramCredential, salted_credential
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.kinds import SCRAM_MECHANISMS, AclOperation
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

_NAMES = {number: name for name, number in SCRAM_MECHANISMS.items()}

Change = ScramCredentialDeletion | ScramCredentialUpsertion


async def handle_alter(
    settings: SettingsAdministration, request: AlterUserScramCredentialsRequest, ctx: RequestContext
) -> AlterUserScramCredentialsResponse:
    """Change the credentials of each user, or return the user's error. All changes of one user are made, or none."""
    ctx.authorize(AclOperation.ALTER, *CLUSTER)
    by_user: dict[str, list[Change]] = {}
    asked: tuple[Change, ...] = (*request.deletions, *request.upsertions)
    for change in asked:
        by_user.setdefault(change.name, []).append(change)
    yielder = Yielder()
    results = []
    for user, changes in by_user.items():
        await yielder.next()
        result = AlterUserScramCredentialsResult(user=user)
        try:
            await settings.alter_user(user, _wanted(user, changes))
        except ProtocolError as error:
            result.error_code, result.error_message = error.code, str(error)
        results.append(result)
    return AlterUserScramCredentialsResponse(results=results)


def _wanted(user: str, changes: list[Change]) -> dict[str, str | None]:
    """Return the credential of each mechanism, None to remove it. Raises the error of the first illegal change."""
    wanted: dict[str, str | None] = {}
    for change in changes:
        mechanism = _NAMES.get(change.mechanism)
        if not user:
            raise ProtocolError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
        if mechanism is None:
            raise ProtocolError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
        if mechanism in wanted:
            message = "A user credential cannot be altered twice in the same request"
            raise ProtocolError(ErrorCode.DUPLICATE_RESOURCE, message)
        wanted[mechanism] = None
        if isinstance(change, ScramCredentialUpsertion):
            _check(change)
            made = salted_credential(mechanism, bytes(change.salted_password), bytes(change.salt), change.iterations)
            wanted[mechanism] = made.encode()
    return wanted


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
    request names twice DUPLICATE_RESOURCE.
    """
    ctx.authorize(AclOperation.DESCRIBE, *CLUSTER)
    users = cache.image.user_configs
    yielder = Yielder()
    results: dict[str, DescribeUserScramCredentialsResult] = {}
    for user in [named.name for named in request.users] if request.users else sorted(users):
        await yielder.next()
        infos = _infos(users.get(user, {}))
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


def _infos(configs: Mapping[str, str]) -> list[CredentialInfo]:
    return [
        CredentialInfo(mechanism=number, iterations=ScramCredential.decode(configs[name]).iterations)
        for name, number in SCRAM_MECHANISMS.items()
        if name in configs
    ]


def bind_alter(services: HandlerServices) -> Handler:
    """Return the handler of AlterUserScramCredentials."""
    return partial(handle_alter, services.settings)


def bind_describe(services: HandlerServices) -> Handler:
    """Return the handler of DescribeUserScramCredentials."""
    return partial(handle_describe, services.cache)

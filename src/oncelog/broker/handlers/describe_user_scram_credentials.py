"""DescribeUserScramCredentials (KIP-554): no user has credentials. Source: Kafka's `ScramImage.describe`."""

from __future__ import annotations

from oncelog.broker.requests.context import RequestContext
from oncelog.broker.requests.operations import CLUSTER, AclOperation
from oncelog.broker.requests.services import Handler, HandlerServices
from oncelog.broker.turns import Yielder
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)


async def handle(
    request: DescribeUserScramCredentialsRequest, ctx: RequestContext
) -> DescribeUserScramCredentialsResponse:
    """Return RESOURCE_NOT_FOUND for each user that the request names, DUPLICATE_RESOURCE if it names one twice."""
    ctx.authorize(AclOperation.DESCRIBE, *CLUSTER)
    yielder = Yielder()
    results: dict[str, DescribeUserScramCredentialsResult] = {}
    for named in request.users or ():
        await yielder.next()
        user = named.name
        if user not in results:
            code = ErrorCode.RESOURCE_NOT_FOUND
            message = f"Attempt to describe a user credential that does not exist: {user}"
        else:
            code = ErrorCode.DUPLICATE_RESOURCE
            message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}"
        results[user] = DescribeUserScramCredentialsResult(user=user, error_code=code, error_message=message)
    return DescribeUserScramCredentialsResponse(results=list(results.values()))


def bind(_services: HandlerServices) -> Handler:
    """Return the handler of DescribeUserScramCredentials."""
    return handle

"""DescribeUserScramCredentials (KIP-554): no user has credentials. Source: Kafka's `ScramImage.describe`."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker
    from oncelog.broker.context import RequestContext


def handle(
    _broker: Broker, request: DescribeUserScramCredentialsRequest, _ctx: RequestContext
) -> DescribeUserScramCredentialsResponse:
    """Return RESOURCE_NOT_FOUND for each user that the request names, DUPLICATE_RESOURCE if it names one twice."""
    named = Counter(user.name for user in request.users or ())
    return DescribeUserScramCredentialsResponse(
        results=[
            DescribeUserScramCredentialsResult(
                user=user,
                error_code=ErrorCode.RESOURCE_NOT_FOUND if times == 1 else ErrorCode.DUPLICATE_RESOURCE,
                error_message=(
                    f"Attempt to describe a user credential that does not exist: {user}"
                    if times == 1
                    else f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}"
                ),
            )
            for user, times in named.items()
        ]
    )

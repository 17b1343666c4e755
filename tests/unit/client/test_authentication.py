"""A client whose login a broker rejects: one attempt, one clear error."""

from __future__ import annotations

import asyncio

import pytest

from oncelog import errors
from oncelog.client.discovery.cluster import ClusterClient
from oncelog.net.sasl import Exchange, Plain
from oncelog.net.security import Security
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.heartbeat import HeartbeatRequest
from support.login_server import LoginServer


class Login:
    mechanism = "PLAIN"

    def __init__(self, password: str) -> None:
        self.password = password

    async def begin(self) -> Exchange:
        return Plain("alice", self.password)


def test_rejected_login_is_not_retried() -> None:
    server = LoginServer("PLAIN")

    async def body(port: int) -> None:
        security = Security("SASL_PLAINTEXT", None, Login("wrong-one"))
        async with ClusterClient(f"127.0.0.1:{port}", security=security, api_timeout_ms=60_000) as cluster:
            for attempt in (cluster.reach(60_000), cluster.topic("t"), cluster.call_any(HeartbeatRequest())):
                with pytest.raises(errors.AuthenticationError, match="rejected the login with PLAIN") as caught:
                    await attempt
                assert caught.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED
                assert "wrong-one" not in f"{caught.value!r}{caught.value.__cause__!r}"

    server.run(body)
    assert server.log.count("SaslHandshake") == 3, "one attempt for each call of the user"


def test_calls_in_a_loop_wait_for_the_back_off() -> None:
    server = LoginServer("PLAIN")

    async def body(port: int) -> None:
        security = Security("SASL_PLAINTEXT", None, Login("wrong-one"))
        async with ClusterClient(
            f"127.0.0.1:{port}", security=security, reconnect_backoff_ms=100, reconnect_backoff_max_ms=1_000
        ) as cluster:
            until = asyncio.get_running_loop().time() + 1
            while asyncio.get_running_loop().time() < until:
                with pytest.raises(errors.AuthenticationError):
                    await cluster.reach(60_000)

    server.run(body)
    assert server.log.count("SaslHandshake") <= 6


@pytest.mark.parametrize(
    "code",
    [ErrorCode.SASL_AUTHENTICATION_FAILED, ErrorCode.ILLEGAL_SASL_STATE, ErrorCode.UNSUPPORTED_SASL_MECHANISM],
)
def test_codes_of_a_failed_login(code: ErrorCode) -> None:
    error = errors.error_for(code)
    assert type(error) is errors.AuthenticationError
    assert not error.retriable

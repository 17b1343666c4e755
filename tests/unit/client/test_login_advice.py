"""Errors of TLS and logins as a program gets them: they name the options to check, and are raised without a retry."""

from __future__ import annotations

import re
import ssl
from pathlib import Path
from typing import Any

import pytest

from oncelog import errors
from oncelog.client.consumer.options import consumer_options
from oncelog.client.discovery.cluster import ClusterClient
from oncelog.client.options import cluster_options
from oncelog.client.security.options import ADVICE, SECURITY
from oncelog.net.failures import Cause
from oncelog.net.security import Security
from support.certificates import authority, signed_by
from support.login_server import LoginServer

SECRET = "hunter2"
PASSWORD = {"sasl_username": "alice", "sasl_password": SECRET}


def security(**given: Any) -> Security:
    found: Security = cluster_options(consumer_options(None, {"bootstrap_servers": "localhost:1", **given}))["security"]
    return found


def rejected(server: LoginServer, kind: type[errors.KafkaError] = errors.AuthenticationError, **given: Any) -> str:
    """Log in with these options. Return the text of the error."""
    caught: list[errors.KafkaError] = []

    async def go(port: int) -> None:
        async with ClusterClient(f"127.0.0.1:{port}", security=security(**given), api_timeout_ms=2_000) as cluster:
            with pytest.raises(kind) as found:
                await cluster.reach(1_000)
            caught.append(found.value)

    server.run(go)
    assert SECRET not in f"{caught[0]!r}{caught[0].__cause__!r}"
    return str(caught[0])


@pytest.mark.parametrize(
    ("mechanism", "given", "words"),
    [
        ("PLAIN", PASSWORD, "check sasl.username and sasl.password, or sasl.jaas.config"),
        ("SCRAM-SHA-256", PASSWORD, "check sasl.username and sasl.password, or sasl.jaas.config"),
        ("OAUTHBEARER", {"sasl_oauth_token_provider": lambda: SECRET}, "check sasl_oauth_token_provider"),
    ],
)
def test_rejected_credentials(mechanism: str, given: dict[str, Any], words: str) -> None:
    server = LoginServer(mechanism)
    text = rejected(server, security_protocol="SASL_PLAINTEXT", sasl_mechanism=mechanism, **given)
    assert words in text
    assert server.log.count("SaslHandshake") == 1


def test_mechanism_that_the_broker_lacks() -> None:
    given = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", **PASSWORD}
    text = rejected(LoginServer("SCRAM-SHA-512"), **given)
    assert "does not accept the mechanism PLAIN; it accepts: SCRAM-SHA-512; set sasl.mechanism" in text


def test_untrusted_certificate(tmp_path: Path) -> None:
    ours, ca = authority(), tmp_path / "ca.pem"
    ca.write_bytes(authority("other").certificate_pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*signed_by(ours, "broker", "127.0.0.1").write(tmp_path, "broker"))
    text = rejected(LoginServer(context=context), security_protocol="SSL", ssl_ca_location=str(ca))
    assert "unknown authority" in text
    assert "set ssl.truststore.location or ssl.ca.location" in text


def test_connection_that_ends_in_the_tls_handshake_is_retried_and_explained() -> None:
    text = rejected(LoginServer(), errors.ConnectionFailedError, security_protocol="SSL")
    assert "ended during the TLS handshake; if this persists, check that the port is a TLS listener" in text


def test_every_cause_has_advice_with_options_that_exist() -> None:
    assert set(ADVICE) == set(Cause)
    known = {name.replace("_", ".") for name in SECURITY} | {"ssl.ca.location"}
    named = {name for text in ADVICE.values() for name in re.findall(r"\b(?:ssl|sasl|security)\.[a-z.]+[a-z]", text)}
    assert named
    assert named <= known

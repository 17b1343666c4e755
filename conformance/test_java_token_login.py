"""A Java client fetches a token from an identity provider, and logs in with it (OAUTHBEARER)."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.apache_kafka import SHORT_LIVED, java, properties
from support.identity_provider import IdentityProvider, key
from support.token_servers import MODULE, SERVERS, TokenServer, values


@pytest.fixture(scope="module")
def provider() -> Iterator[IdentityProvider]:
    with IdentityProvider(key("RSA", "rsa")) as made:
        yield made


@pytest.fixture(scope="module", params=reversed(SERVERS))
def guarded_by_tokens(
    request: pytest.FixtureRequest, provider: IdentityProvider, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TokenServer]:
    made = SERVERS[request.param](tmp_path_factory.mktemp("server"), provider.keys_url)
    yield made
    made.stop()


def test_java_logs_in_with_the_token_of_an_endpoint(
    guarded_by_tokens: TokenServer, provider: IdentityProvider, name: str, tmp_path: Path
) -> None:
    settings = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.login.callback.handler.class": (
            "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
        ),
        "sasl.oauthbearer.token.endpoint.url": provider.token_url,
        "sasl.oauthbearer.client.credentials.client.id": provider.client_id,
        "sasl.oauthbearer.client.credentials.client.secret": provider.client_secret,
        "sasl.jaas.config": f"{MODULE};",
    }
    config = tmp_path / "client.properties"
    config.write_text(properties(settings))
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={provider.token_url}"
    arguments = ("--bootstrap-server", guarded_by_tokens.login_address, "--topic", name, "--command-config", config)
    command = java("org.apache.kafka.tools.ConsoleProducer", *arguments, options=(*SHORT_LIVED, allowed))
    done = subprocess.run(command, input="x\n", capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert values(guarded_by_tokens, name, 1) == [b"x"]

"""The settings of OAUTHBEARER: what a server.properties for Kafka may contain, and what is refused."""

from __future__ import annotations

import pytest

from oncelog.broker.config.errors import ConfigError
from oncelog.broker.config.settings import load
from oncelog.broker.config.token_settings import TokenRules

OAUTH = "org.apache.kafka.common.security.oauthbearer"
URL = "sasl.oauthbearer.jwks.endpoint.url"
HANDLER = "sasl.server.callback.handler.class"
BASE = {
    "listeners": "LOGIN://127.0.0.1:1",
    "listener.security.protocol.map": "LOGIN:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "OAUTHBEARER",
    URL: "https://issuer.example/keys",
}
LOGIN = "listener.name.login.oauthbearer"


def test_settings_of_kafka_are_read() -> None:
    config = load(
        {
            **BASE,
            f"{LOGIN}.sasl.jaas.config": f"{OAUTH}.OAuthBearerLoginModule required;",
            f"{LOGIN}.{HANDLER}": f"{OAUTH}.OAuthBearerValidatorCallbackHandler",
            f"{LOGIN}.connections.max.reauth.ms": "5000",
            "sasl.oauthbearer.jwt.validator.class": f"{OAUTH}.BrokerJwtValidator",
            "sasl.oauthbearer.expected.issuer": "https://issuer.example",
            "sasl.oauthbearer.expected.audience": "kafka, other",
            "sasl.oauthbearer.clock.skew.seconds": "5",
            "sasl.oauthbearer.scope.claim.name": "scp",
            "sasl.oauthbearer.sub.claim.name": "client_id",
            "sasl.oauthbearer.jwks.endpoint.refresh.ms": "1000",
        }
    )
    security = config.security["LOGIN"]
    assert security.tokens is not None
    assert security.tokens.keys_url == BASE[URL]
    assert security.tokens.refresh_ms == 1000
    expected = TokenRules("https://issuer.example", frozenset({"kafka", "other"}), 5, "scp", "client_id")
    assert security.tokens.rules == expected
    assert security.tokens.warnings() == []
    assert (security.session_ms("OAUTHBEARER"), security.session_ms("PLAIN")) == (5000, 0)
    assert config.warnings == ()


def test_setting_of_the_mechanism_overrides_that_of_the_listener() -> None:
    urls = {
        URL: "https://one.example",
        f"listener.name.login.{URL}": "https://two.example",
        f"{LOGIN}.{URL}": "https://three.example",
    }
    found = []
    for number in range(1, 4):
        tokens = load({**BASE, **dict(list(urls.items())[:number])}).security["LOGIN"].tokens
        assert tokens is not None
        found.append(tokens.keys_url)
    assert found == list(urls.values())


def test_authorities_of_the_provider_are_in_the_line_as_in_kafka() -> None:
    line = f'{OAUTH}.OAuthBearerLoginModule required ssl.truststore.location="/ca.p12" ssl.truststore.password="pw1";'
    config = load({**BASE, f"{LOGIN}.sasl.jaas.config": line})
    tokens = config.security["LOGIN"].tokens
    assert tokens is not None
    assert tokens.trust is not None
    assert tokens.trust.path == "/ca.p12"
    assert "pw1" not in repr(config)


def test_unsafe_settings_have_warnings() -> None:
    tokens = load({**BASE, URL: "http://issuer.example/keys"}).security["LOGIN"].tokens
    assert tokens is not None
    http, issuer, audience = tokens.warnings()
    assert "has no TLS" in http
    assert "expected.issuer is not set" in issuer
    assert "expected.audience is not set" in audience
    local = load({**BASE, URL: "http://127.0.0.1:1/"}).security["LOGIN"].tokens
    assert local is not None
    assert "has no TLS" not in str(local.warnings())


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({URL: ""}, "Kafka accepts tokens without a signature, which anyone can make; oncelog does not"),
        ({f"{LOGIN}.{HANDLER}": "com.example.Mine"}, "com.example.Mine is a Java class, which oncelog cannot load"),
        (
            {f"{LOGIN}.{HANDLER}": f"{OAUTH}.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"},
            "accepts tokens without a signature",
        ),
        ({"sasl.oauthbearer.jwt.validator.class": f"{OAUTH}.ClientJwtValidator"}, "supported are"),
        ({"sasl.oauthbearer.jwt.validator.class": "com.example.Mine"}, "which oncelog cannot load"),
        ({URL: "ftp://issuer.example"}, "must be an https, http or file URL"),
        ({URL: "https:///keys"}, "must be an https, http or file URL"),
        ({URL: "https://issuer.example:x/"}, "must be an https, http or file URL"),
        ({URL: "https://[::1/"}, "must be an https, http or file URL"),
        ({URL: "/keys.json"}, "must be an https, http or file URL"),
        ({URL: "https://user:pw@issuer.example"}, "must have no user name and password"),
        ({"sasl.oauthbearer.sub.claim.name": " "}, "sub.claim.name must not be empty"),
        ({"sasl.oauthbearer.clock.skew.seconds": "-1"}, "must be at least 0"),
        ({"sasl.oauthbearer.jwks.endpoint.refresh.ms": "0"}, "must be at least 1"),
        (
            {f"{LOGIN}.sasl.jaas.config": f'{OAUTH}.OAuthBearerLoginModule required ssl.keystore.location="x";'},
            "has the option ssl.keystore.location, which is not supported",
        ),
    ],
)
def test_invalid_setting_is_refused_with_one_sentence(changed: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load({**BASE, **changed})
    assert sentence in str(caught.value)
    assert "pw" not in str(caught.value)


def test_callback_handler_of_another_mechanism_is_refused() -> None:
    plain = {
        "sasl.enabled.mechanisms": "PLAIN",
        "plain.sasl.jaas.config": 'x.PlainLoginModule required user_a="b";',
        f"listener.name.login.plain.{HANDLER}": "com.example.Mine",
    }
    with pytest.raises(ConfigError, match=r"com\.example\.Mine is a Java class, which oncelog cannot load; omit it"):
        load({**BASE, **plain})


PEERS = {
    **BASE,
    "inter.broker.listener.name": "LOGIN",
    "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
    "sasl.oauthbearer.token.endpoint.url": "https://issuer.example/token",
    "sasl.oauthbearer.client.credentials.client.id": "me",
    "sasl.oauthbearer.client.credentials.client.secret": "pw1",
    "sasl.login.callback.handler.class": f"{OAUTH}.OAuthBearerLoginCallbackHandler",
}
LINE = f'{OAUTH}.OAuthBearerLoginModule required clientId="old" clientSecret="pw2" scope="all" extension_a="b";'


def test_broker_gets_tokens_for_itself() -> None:
    config = load(PEERS)
    login = config.security["LOGIN"].peer_login
    assert login is not None
    assert login.mechanism == "OAUTHBEARER"
    assert "pw1" not in repr(config)
    assert "pw1" not in str(config.given)


def test_secret_of_one_mechanism_is_not_shown() -> None:
    config = load({**PEERS, f"{LOGIN}.sasl.oauthbearer.client.credentials.client.secret": "pw3"})
    assert "pw" not in str(config.given)
    assert "pw" not in repr(config)


def test_older_options_in_the_line_are_read() -> None:
    without = {name: text for name, text in PEERS.items() if ".client.credentials." not in name}
    login = load({**without, f"{LOGIN}.sasl.jaas.config": LINE}).security["LOGIN"].peer_login
    assert login is not None


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"sasl.oauthbearer.token.endpoint.url": ""}, "must be the address of the identity provider"),
        ({"sasl.oauthbearer.token.endpoint.url": "token"}, "must be an https, http or file URL"),
        ({"sasl.oauthbearer.client.credentials.client.secret": ""}, "with which this broker gets its tokens"),
        ({"sasl.login.callback.handler.class": "com.example.Mine"}, "is a Java class, which oncelog cannot load"),
        ({"sasl.oauthbearer.jwt.retriever.class": f"{OAUTH}.JwtBearerJwtRetriever"}, "supported are"),
        (
            {f"{LOGIN}.sasl.jaas.config": LINE.replace(";", ' ssl.truststore.location="/missing.pem";')},
            "listener LOGIN: ssl.truststore.location = '/missing.pem'",
        ),
    ],
)
def test_broker_without_tokens_of_its_own_is_refused(changed: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load({**PEERS, **changed})
    assert sentence in str(caught.value)
    assert "pw" not in str(caught.value)

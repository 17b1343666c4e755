"""The keys of an identity provider: when they are read, from where, and what is refused."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oncelog.broker.config.token_settings import TokenRules, TokenSettings
from oncelog.broker.oauth import token_keys
from oncelog.broker.oauth.signed_tokens import RejectedTokenError, claimed_user
from oncelog.broker.oauth.signing_keys import MAX_KEYS, MAX_TRIED, SigningKeys, UnknownKeyError
from oncelog.broker.oauth.token_keys import MAX_BYTES, KeySourceError, RefreshTimes, TokenKeys, read_keys
from oncelog.broker.retrying import Backoff
from oncelog.net.tls_files import Store
from oncelog.testing.broker import Broker, BrokerStartError
from support.certificates import authority, signed_by
from support.identity_provider import IdentityProvider, claims, key, public, signed
from support.token_servers import token_settings

RSA, OTHER = key("RSA", "one"), key("RSA", "two")
LOGGER = logging.getLogger("test")


def settings(url: str) -> TokenSettings:
    return TokenSettings(url, 3_600_000, 100, 10_000, TokenRules())


def verified(keys: SigningKeys, private: Any, kid: str | None = "own") -> bool:
    what, _, _ = signed(private, claims()).rpartition(".")
    signature = private.private_key.sign(what.encode(), *_padding())
    return keys.verify("RS256", private.kid if kid == "own" else kid, what.encode(), signature)


def _padding() -> tuple[Any, ...]:
    from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
    from cryptography.hazmat.primitives.hashes import SHA256

    return PKCS1v15(), SHA256()


# -- when -----------------------------------------------------------------------------------------------------------


def test_next_attempt_is_after_the_interval_or_the_backoff() -> None:
    times = RefreshTimes(60.0, Backoff(100, 1000))
    times.succeeded(5.0)
    assert times.due == 65.0
    waits = []
    for _ in range(6):
        times.failed(0.0)
        waits.append(times.due)
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    times.succeeded(0.0)
    times.failed(0.0)
    assert times.due == 0.1


def test_settings_of_zero_do_not_make_a_busy_loop() -> None:
    times = RefreshTimes(0.001, Backoff(0, 0))
    times.succeeded(0.0)
    assert times.due == 0.1
    times.failed(0.0)
    assert times.due == 0.1


def test_only_one_request_in_ten_seconds_has_an_effect() -> None:
    times = RefreshTimes(3600.0, Backoff(100, 1000))
    times.succeeded(0.0)
    assert times.requested(1.0)
    assert times.due == 1.0
    times.succeeded(1.0)
    assert [times.requested(at) for at in (1.0, 5.0, 10.9)] == [False] * 3
    assert times.due == 3601.0
    assert times.requested(11.0)


# -- which ----------------------------------------------------------------------------------------------------------


def test_unusable_keys_are_skipped() -> None:
    found = public(RSA)["keys"]
    (plain,) = found
    damaged: list[Any] = [
        *("text", None, {}, {"kty": "RSA"}, {"kty": ["RSA"]}, {"kty": "oct", "k": "YQ"}),
        {**plain, "n": "!"},
        {**plain, "n": 5},
        {**plain, "kid": 5},
        {**plain, "use": "enc"},
        {**plain, "key_ops": ["sign"]},
        {**plain, "key_ops": "verify"},
        {"kty": "EC", "crv": "P-256", "x": "AQ", "y": "AQ"},
        {"kty": "EC", "crv": "P-0", "x": "AQ", "y": "AQ"},
        {"kty": "OKP", "crv": "X25519", "x": "AQ"},
    ]
    keys = SigningKeys.parse({"keys": [*damaged, plain]})
    assert (len(keys), keys.skipped) == (1, len(damaged))
    assert verified(keys, RSA)


@pytest.mark.parametrize("document", [{}, {"keys": None}, {"keys": {}}, {"keys": [{}] * (MAX_KEYS + 1)}])
def test_document_that_is_no_key_set_is_refused(document: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"key set|Key Set"):
        SigningKeys.parse(document)


def test_key_for_another_algorithm_is_not_used() -> None:
    (plain,) = public(RSA)["keys"]
    assert not verified(SigningKeys.parse({"keys": [{**plain, "alg": "PS256"}]}), RSA)
    assert verified(SigningKeys.parse({"keys": [{**plain, "alg": "RS256"}]}), RSA)


def test_few_keys_are_tried_for_a_token_without_key_id() -> None:
    (plain,) = public(RSA)["keys"]
    others = [{**public(OTHER)["keys"][0], "kid": str(number)} for number in range(MAX_TRIED)]
    assert verified(SigningKeys.parse({"keys": [*others[1:], plain]}), RSA, None)
    assert not verified(SigningKeys.parse({"keys": [*others, plain]}), RSA, None)
    assert verified(SigningKeys.parse({"keys": [*others, plain]}), RSA)
    with pytest.raises(UnknownKeyError):
        verified(SigningKeys.parse({"keys": others}), RSA)


def test_time_beyond_the_range_of_the_protocol_is_rejected() -> None:
    with pytest.raises(RejectedTokenError, match="exp"):
        claimed_user(claims(exp=2**62), TokenRules(), 0)


# -- from where -----------------------------------------------------------------------------------------------------


def test_file_is_read_again_when_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_keys, "FILE_S", 0.0)
    path = tmp_path / "keys of issuer.json"
    path.write_text(json.dumps(public(RSA)))

    async def run() -> None:
        keys = TokenKeys(settings(path.as_uri()), asyncio.get_running_loop().time, LOGGER)
        await keys.load()
        assert verified(keys.current, RSA)
        task = asyncio.ensure_future(keys.run())
        path.write_text(json.dumps(public(OTHER)))
        await until(lambda: known(keys.current, OTHER) and not known(keys.current, RSA))
        path.write_text("damaged")
        await asyncio.sleep(0.5)
        assert known(keys.current, OTHER)
        path.write_text(json.dumps(public(RSA)))
        await until(lambda: known(keys.current, RSA))
        task.cancel()

    asyncio.run(run())


def known(keys: SigningKeys, private: Any) -> bool:
    try:
        return verified(keys, private)
    except UnknownKeyError:
        return False


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.02)


def test_former_keys_stay_while_the_provider_fails() -> None:
    async def run() -> None:
        keys = TokenKeys(settings(provider.keys_url), asyncio.get_running_loop().time, LOGGER)
        await keys.load()
        task = asyncio.ensure_future(keys.run())
        provider.status = 500
        before = provider.requests
        keys.request()
        await until(lambda: provider.requests >= before + 3)
        assert known(keys.current, RSA)
        provider.key_set, provider.status = public(OTHER), 200
        await until(lambda: known(keys.current, OTHER))
        task.cancel()

    with IdentityProvider(RSA) as provider:
        asyncio.run(run())


@pytest.mark.parametrize(
    ("answer", "status", "reason"),
    [
        ({"keys": []}, 500, "HTTP 500"),
        ({"keys": []}, 302, "HTTP 302"),
        (b"<html>", 200, "not a JSON object"),
        (b"[" * 100_000, 200, "not a JSON object"),
        (b'{"keys":5}', 200, "no JSON Web Key Set"),
        (b'{"keys":[]' + b" " * MAX_BYTES + b"}", 200, "more than"),
    ],
)
def test_unusable_answer_is_refused(answer: Any, status: int, reason: str) -> None:
    with IdentityProvider(RSA) as provider:
        provider.key_set, provider.status = answer, status
        with pytest.raises(KeySourceError, match=reason):
            read_keys(settings(provider.keys_url))


def test_certificate_of_the_provider_is_checked(tmp_path: Path) -> None:
    issuer = authority()
    certificate, private = signed_by(issuer, "provider", "127.0.0.1").write(tmp_path, "provider")
    trusted = tmp_path / "ca.pem"
    trusted.write_bytes(issuer.certificate_pem)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, private)
    with IdentityProvider(RSA, tls=tls) as provider:
        plain = settings(provider.keys_url)
        with pytest.raises(KeySourceError, match="certificate verify failed"):
            read_keys(plain)
        assert verified(read_keys(replace(plain, trust=Store("ssl.truststore.location", str(trusted)))), RSA)
        with pytest.raises(KeySourceError, match=r"ssl\.truststore\.location"):
            read_keys(replace(plain, trust=Store("ssl.truststore.location", str(tmp_path / "missing.pem"))))


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "No such file"), ("[]", "no JSON object"), (" " * (MAX_BYTES + 1), "more than")]
)
def test_unusable_file_is_refused(tmp_path: Path, content: str | None, reason: str) -> None:
    path = tmp_path / "keys.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(KeySourceError, match=reason):
        read_keys(settings(path.as_uri()))


def test_broker_does_not_start_without_the_keys(tmp_path: Path) -> None:
    made = token_settings((tmp_path / "missing.json").as_uri())
    broker = Broker({"listeners": "SASL_PLAINTEXT://127.0.0.1:0", **made})
    with pytest.raises(BrokerStartError, match="cannot read the keys: No such file"):
        broker.start()

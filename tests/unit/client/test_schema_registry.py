"""The client of the schema registry: logins, retries, wrong answers, and what its errors say."""

from __future__ import annotations

import pickle
import ssl
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oncelog.errors import ConfigError, RegistryError
from oncelog.serialization import SchemaRegistry
from oncelog.testing.registry import SchemaRegistryDouble
from support.apache_kafka import held_ports, port_of
from support.certificates import authority, signed_by
from support.raw_endpoint import raw_endpoint

LONG = '"long"'


@pytest.fixture
def closed() -> Iterator[str]:
    """Return a URL where nothing listens."""
    (sock,) = held_ports(1)
    with sock:
        yield f"http://127.0.0.1:{port_of(sock)}"


@pytest.fixture
def fake() -> Iterator[SchemaRegistryDouble]:
    with SchemaRegistryDouble() as found:
        yield found


def test_schema_keeps_its_id(fake: SchemaRegistryDouble) -> None:
    registry = SchemaRegistry(f"{fake.url}/")
    first = registry.register("a/b c-value", LONG)
    assert registry.register("a/b c-value", LONG) == first == registry.find("a/b c-value", LONG)
    assert registry.schema(first) == {"schema": LONG}
    assert registry.version("a/b c-value", 1)["id"] == first


def test_missing_schema_is_a_lookup_error(fake: SchemaRegistryDouble) -> None:
    registry = SchemaRegistry(fake.url)
    with pytest.raises(LookupError, match="/schemas/ids/7: the registry has no such schema"):
        registry.schema(7)
    with pytest.raises(LookupError, match="register the schema for subject t-value first"):
        registry.find("t-value", LONG)
    with pytest.raises(LookupError, match="/subjects/t-value/versions/1"):
        registry.version("t-value", 1)


def test_wrong_url_is_not_a_missing_schema(fake: SchemaRegistryDouble) -> None:
    """A program would skip good records."""
    fake.failures = [404]
    with pytest.raises(RegistryError, match="HTTP 404"):
        SchemaRegistry(fake.url).schema(1)


@pytest.mark.parametrize(
    ("options", "header"),
    [
        ({"username": "ann", "password": "s3cret"}, "Basic " + b64encode(b"ann:s3cret").decode()),
        ({"token": "s3cret"}, "Bearer s3cret"),
    ],
)
def test_login_is_sent_and_hidden(fake: SchemaRegistryDouble, options: dict[str, Any], header: str) -> None:
    fake.authorization = header
    registry = SchemaRegistry(fake.url, **options)
    registry.register("t-value", LONG)
    assert "s3cret" not in f"{registry!r} {vars(registry)}"
    with pytest.raises(RegistryError, match="HTTP 401: Unauthorized") as caught:
        SchemaRegistry(fake.url).register("t-value", LONG)
    assert (caught.value.retriable, caught.value.status) == (False, 401)


def test_redirect_is_not_followed(fake: SchemaRegistryDouble) -> None:
    """It would carry the password to another host."""
    with SchemaRegistryDouble() as other:
        fake.failures, fake.location = [307], f"{other.url}/schemas/ids/1"
        with pytest.raises(RegistryError, match="HTTP 307"):
            SchemaRegistry(fake.url, token="x").schema(1)
        assert other.requests == []


def test_temporary_failures_are_retried(fake: SchemaRegistryDouble) -> None:
    registry = SchemaRegistry(fake.url)
    fake.failures = [500, 503, 429]
    assert registry.register("t-value", LONG) == 100
    assert len(fake.requests) == 4


def test_next_url_is_used_if_one_does_not_answer(fake: SchemaRegistryDouble, closed: str) -> None:
    registry = SchemaRegistry([closed, fake.url], timeout=3600)
    assert registry.register("t-value", LONG) == 100


def test_urls_may_be_separated_by_commas(fake: SchemaRegistryDouble, closed: str) -> None:
    assert SchemaRegistry(f"{closed}, {fake.url}").register("s", LONG) == 100


def test_next_url_is_used_if_one_is_no_registry(fake: SchemaRegistryDouble) -> None:
    with raw_endpoint(b"SSH-2.0\r\n" * 1_000) as (wrong, _):
        registry = SchemaRegistry([wrong.removesuffix("/token"), fake.url])
        assert registry.register("s", LONG) == 100


def test_url_that_answered_last_is_asked_first(fake: SchemaRegistryDouble) -> None:
    """The first URL accepts connections, and never ends its answer. It gets half of the time."""
    with raw_endpoint(b"H", b"", pause_s=0.05) as (silent, sent):
        registry = SchemaRegistry([silent.removesuffix("/token"), fake.url], timeout=4)
        assert registry.register("t-value", LONG) == 100
        assert sent.count(1) == 1, "it was asked first"
        for _ in range(3):
            assert registry.register("t-value", LONG) == 100
        with pytest.raises(LookupError):
            registry.schema(7)
        assert registry.schema(100) == {"schema": LONG}
        assert sent.count(1) == 1


def test_registry_with_tls(tmp_path: Path) -> None:
    ours = authority()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*signed_by(ours, "registry", "127.0.0.1").write(tmp_path, "registry"))
    trusting = ssl.create_default_context(cadata=ours.certificate_pem.decode())
    with SchemaRegistryDouble(context) as fake:
        assert SchemaRegistry(fake.url, ssl_context=trusting).register("t-value", LONG) == 100
        with pytest.raises(RegistryError, match=r"CERTIFICATE_VERIFY_FAILED.*; pass an ssl_context") as caught:
            SchemaRegistry(fake.url, token="s3cret").register("t-value", LONG)
        assert not caught.value.retriable
        assert len(fake.requests) == 1, "no token for a registry that is not trusted"


def test_registry_that_stops_answering_is_replaced_within_the_timeout(fake: SchemaRegistryDouble) -> None:
    with SchemaRegistryDouble() as other:
        registry = SchemaRegistry([other.url, fake.url], timeout=2)
        assert registry.register("t-value", LONG) == 100
        assert other.requests
        other.delay_s = 5
        assert registry.register("u-value", LONG) == 100
        assert ("POST", "/subjects/u-value/versions") in fake.requests


@pytest.mark.parametrize(
    "pieces", [(b"HTTP/1.1 200 OK\r\n", b"a"), (b"HTTP/1.1 200 OK\r\n\r\n", b"a"), (b"HTTP/1.1 500 No\r\n\r\n", b"a")]
)
def test_answer_that_never_ends_is_given_up_after_the_timeout(pieces: tuple[bytes, ...]) -> None:
    """One byte at a time: no single read takes long."""
    with raw_endpoint(*pieces, pause_s=0.05) as (url, _):
        with pytest.raises(RegistryError, match=r"timed out|HTTP 500") as caught:
            SchemaRegistry(url, token="s3cret", timeout=0.4).schema(1)
        assert caught.value.retriable
    assert "s3cret" not in repr(caught.value)


def test_unreachable_registry_fails_after_the_timeout(closed: str) -> None:
    registry = SchemaRegistry(closed, timeout=0.3)
    with pytest.raises(RegistryError, match=r"refused; check the URL .*, and that it runs") as caught:
        registry.schema(1)
    assert caught.value.retriable
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.retriable, copy.status) == (str(caught.value), True, None)


def test_slow_registry_fails_after_the_timeout(fake: SchemaRegistryDouble) -> None:
    fake.delay_s = 2
    with pytest.raises(RegistryError, match="timed out"):
        SchemaRegistry(fake.url, timeout=0.2).schema(1)


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"\xff", b"[" * 100_000])
def test_answer_that_is_not_a_json_object_is_rejected(fake: SchemaRegistryDouble, body: bytes) -> None:
    fake.body = body
    with pytest.raises(RegistryError, match="is not a JSON object; check the URL"):
        SchemaRegistry(fake.url).schema(1)


@pytest.mark.parametrize("body", [b"{}", b'{"id": -1}', b'{"id": "5"}', b'{"id": 4294967296}', b'{"id": true}'])
def test_answer_without_an_id_is_rejected(fake: SchemaRegistryDouble, body: bytes) -> None:
    fake.body = body
    with pytest.raises(RegistryError, match="the answer for subject t-value has no id"):
        SchemaRegistry(fake.url).register("t-value", LONG)


def test_large_answer_is_rejected(fake: SchemaRegistryDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncelog.client.serialization.registry.MAX_ANSWER_BYTES", 100)
    fake.body = b'{"schema": "' + b"x" * 100 + b'"}'
    with pytest.raises(RegistryError, match="more than 100 bytes"):
        SchemaRegistry(fake.url).schema(1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"url": "localhost:8081"}, "url = 'localhost:8081': it must be an http or https URL"),
        ({"url": "ftp://host"}, "http or https"),
        ({"url": []}, "at least one URL"),
        ({"url": 5}, "url = 5"),
        ({"url": "http://ann:s3cret@host"}, "pass username and password"),
        ({"url": "http://host", "username": "ann"}, "username and password: set both"),
        ({"url": "http://host", "username": "ann", "password": "x", "token": "y"}, "username and token"),
        ({"url": "http://host", "timeout": 0}, "timeout = 0"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        SchemaRegistry(**arguments)
    assert "s3cret" not in str(caught.value)

"""Credentials in the metadata that cannot be read: the user cannot log in, and nobody learns why."""

from __future__ import annotations

import logging

import pytest

from oncelog.broker.logins import find_scram
from oncelog.cluster.image import MetadataCache, MetadataImage
from oncelog.net.sasl_server import RejectedLoginError, ScramServer, scram_credential

MECHANISM = "SCRAM-SHA-256"
GOOD = scram_credential(MECHANISM, "hunter2", b"salt" * 6, 4096).encode()


def cache(text: str) -> MetadataCache:
    made = MetadataCache()
    made.image = MetadataImage(user_configs={"alice": {MECHANISM: text}})
    return made


def test_credential_of_a_user_and_a_mechanism_is_found() -> None:
    assert find_scram(cache(GOOD), MECHANISM, "alice") is not None
    assert find_scram(cache(GOOD), "SCRAM-SHA-512", "alice") is None
    assert find_scram(cache(GOOD), MECHANISM, "bob") is None


@pytest.mark.parametrize("text", ["", "x", GOOD[:30], GOOD.replace("iterations=4096", "iterations=x"), "salt=!,"])
def test_damaged_credential_is_logged_and_rejects_the_user(text: str, caplog: pytest.LogCaptureFixture) -> None:
    server = ScramServer(MECHANISM, lambda user: find_scram(cache(text), MECHANISM, user), "nonce", b"disguise")
    with caplog.at_level(logging.ERROR):
        challenge = server.answer(b"n,,n=alice,r=clients")
    assert "the credential of user 'alice' for SCRAM-SHA-256 is damaged" in caplog.text
    assert "salt=" not in caplog.text
    nonce = challenge.split(b",")[0]
    with pytest.raises(RejectedLoginError, match="invalid credentials"):
        server.answer(b"c=biws," + nonce + b",p=" + b"A" * 43 + b"=")

"""What a thief can do with a credential of SCRAM from the metadata's file (RFC 5802, section 9)."""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode

import pytest

from oncelog.net.sasl import MIN_ITERATIONS, Scram
from oncelog.net.sasl_server import RejectedLoginError, ScramServer, scram_credential

MECHANISM, HASH, USER, PASSWORD = "SCRAM-SHA-256", "sha256", "alice", "hunter2"
STOLEN = scram_credential(MECHANISM, PASSWORD, b"salt" * 6, MIN_ITERATIONS)


def server(nonce: str) -> ScramServer:
    return ScramServer(MECHANISM, {USER: STOLEN}.get, nonce, b"disguise")


def xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


def proof_of(key: bytes, first: bytes, challenge: bytes) -> bytes:
    """Return the last message of a client that has `key` instead of the password."""
    final = "c=biws," + challenge.decode().split(",")[0]
    signed = ",".join((first.decode()[3:], challenge.decode(), final)).encode()
    signature = hmac.digest(STOLEN.stored_key, signed, HASH)
    return f"{final},p={b64encode(xor(key, signature)).decode()}".encode()


@pytest.mark.parametrize("key", [STOLEN.stored_key, STOLEN.server_key], ids=["stored", "server"])
def test_stolen_credential_is_no_login(key: bytes) -> None:
    exchange, first = server("nonce"), f"n,,n={USER},r=thief".encode()
    challenge = exchange.answer(first)
    with pytest.raises(RejectedLoginError):
        exchange.answer(proof_of(key, first, challenge))
    assert not exchange.user


def test_stolen_credential_with_a_recorded_login_is_a_login() -> None:
    client, exchange = Scram(MECHANISM, USER, PASSWORD, "honest"), server("first")
    first = client.first()
    challenge = exchange.answer(first)
    final = client.answer(challenge)
    assert final is not None
    exchange.answer(final)
    assert exchange.user == USER
    signed_part, _, proof = final.decode().rpartition(",p=")
    signed = ",".join((first.decode()[3:], challenge.decode(), signed_part)).encode()
    key = xor(b64decode(proof), hmac.digest(STOLEN.stored_key, signed, HASH))
    assert hashlib.sha256(key).digest() == STOLEN.stored_key
    exchange, first = server("second"), f"n,,n={USER},r=thief".encode()
    exchange.answer(proof_of(key, first, exchange.answer(first)))
    assert exchange.user == USER

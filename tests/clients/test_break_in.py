"""Nobody gets past the login without the password: requests in any order, and messages that no client sends."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import pytest

from oncelog.broker.requests.apis import SERVED
from oncelog.net.sasl import Scram
from oncelog.protocol.apis import ApiKey
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.headers import RequestHeader, encode_request_header
from oncelog.protocol.messages.api_versions import ApiVersionsRequest
from oncelog.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from oncelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from support.attacker import ASK, Attacker, Call, choose, codes, encoded, framed, plain, say
from support.locked_servers import Locked
from support.secured_kafka import GUEST, GUEST_PASSWORD, PASSWORD, USER
from support.wire import Wire

SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
BEFORE = {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
FAILED = int(ErrorCode.SASL_AUTHENTICATION_FAILED)
ILLEGAL = int(ErrorCode.ILLEGAL_SASL_STATE)
VERSIONS: Call = (ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3)
RIGHT = plain(USER, PASSWORD)


@pytest.fixture(autouse=True)
def check_server(locked: Locked) -> Iterator[None]:
    """After each test, check that another client is served, and that nothing of the attack is left."""
    yield
    locked.check()


@pytest.fixture
def attacker(locked: Locked) -> Iterator[Attacker]:
    with Attacker(locked.addresses["OPEN"]) as made:
        yield made


def first(nonce: str = "clients-nonce", user: str = USER) -> Call:
    return say(f"n,,n={user},r={nonce}")


def scram(attacker: Attacker, mechanism: str, user: str, password: str) -> list[bytes]:
    """Log in with SCRAM. Return the messages of the client."""
    client = Scram(mechanism, user, password, "clients-nonce")
    begin = client.first()
    _, challenge = attacker.call(choose(mechanism), say(begin))
    final = client.answer(bytes(challenge.auth_bytes))
    assert final is not None
    [done] = attacker.call(say(final))
    assert not done.error_code, done
    return [begin, final]


# -- requests before, during and behind a login -----------------------------------------------------------------------


@pytest.mark.parametrize("before", [(), (VERSIONS,), (choose("PLAIN"),), (choose("SCRAM-SHA-256"), first())])
def test_no_api_is_served_before_the_login(locked: Locked, before: tuple[Call, ...]) -> None:
    """The body of the requests is empty: they must be rejected before they are parsed, because parsers have faults."""
    attackers = []
    for key, served in SERVED.items():
        for version in {served.min_version, served.max_version}:
            if key not in BEFORE:
                attackers.append(Attacker(locked.addresses["OPEN"]))
                header = encode_request_header(RequestHeader(key, version, 7, "attacker"))
                attackers[-1].write(b"".join(map(encoded, before)) + framed(header + bytes(64)))
    for each in attackers:
        with each:
            assert None not in [each.answer(call) for call in before]
            rest = each.rest()
            assert rest == b"" or (before and locked.name == "apache-kafka"), "Kafka returns errors during a login"


def test_unknown_apis_and_versions_close_the_connection(locked: Locked) -> None:
    for key, version in ((-1, 0), (999, 0), (32767, 32767), (ApiKey.SASL_HANDSHAKE, 9), (ApiKey.METADATA, -1)):
        with Attacker(locked.addresses["OPEN"]) as each:
            each.write(framed(struct.pack(">hhih", key, version, 1, -1) + bytes(64)))
            assert each.rest() == b""


@pytest.mark.parametrize("mechanism", ["PLAIN", *SCRAM])
def test_requests_behind_a_failing_login_are_not_served(locked: Locked, mechanism: str, name: str) -> None:
    create = CreateTopicsRequest(topics=[CreatableTopic(name=name, num_partitions=1, replication_factor=1)])
    wrong = plain(USER, "wrong") if mechanism == "PLAIN" else say("c=biws,r=x,p=eA==")
    with Attacker(locked.addresses["OPEN"]) as attacker:
        found = attacker.call(choose(mechanism), wrong, (create, 5), ASK, choose("PLAIN"), RIGHT, ASK)
    assert codes(found) == [0, FAILED, None, None, None, None, None]
    with Wire(locked.addresses["PLAINTEXT"]) as wire:
        asked = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
        assert wire.call(asked, 12).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_requests_behind_a_good_login_are_served(attacker: Attacker) -> None:
    found = attacker.call(choose("PLAIN"), RIGHT, ASK, ASK)
    assert codes(found) == [0, 0, 0, 0]


ORDERS: dict[str, tuple[list[Call], list[int | None]]] = {
    "no handshake": ([RIGHT], [ILLEGAL]),
    "handshake twice": ([choose("PLAIN"), choose("PLAIN"), RIGHT], [0, ILLEGAL, None]),
    "another mechanism": ([choose("PLAIN"), choose("SCRAM-SHA-256"), first()], [0, ILLEGAL, None]),
    "PLAIN in the middle of SCRAM": (
        [choose("SCRAM-SHA-256"), first(), choose("PLAIN"), RIGHT],
        [0, 0, ILLEGAL, None],
    ),
    "SCRAM with the message of PLAIN": ([choose("SCRAM-SHA-256"), RIGHT, RIGHT], [0, FAILED, None]),
    "PLAIN with the message of SCRAM": ([choose("PLAIN"), first(), RIGHT], [0, FAILED, None]),
    "last message first": ([choose("SCRAM-SHA-256"), say("c=biws,r=x,p=eA=="), first()], [0, FAILED, None]),
    "first message twice": ([choose("SCRAM-SHA-256"), first(), first(), first()], [0, 0, FAILED, None]),
    "unknown mechanism": (
        [choose("NONE"), RIGHT, choose("PLAIN"), RIGHT],
        [int(ErrorCode.UNSUPPORTED_SASL_MECHANISM), None, None, None],
    ),
    "mechanism in lower case": ([choose("plain"), RIGHT], [int(ErrorCode.UNSUPPORTED_SASL_MECHANISM), None]),
    "no mechanism": ([choose(""), RIGHT], [int(ErrorCode.UNSUPPORTED_SASL_MECHANISM), None]),
    "versions during the login": ([choose("PLAIN"), VERSIONS, RIGHT], [0, ILLEGAL, None]),
    "old handshake": ([choose("PLAIN", 0), RIGHT], [0, None]),
    "empty message": ([choose("PLAIN"), say(b""), RIGHT], [0, FAILED, None]),
}


@pytest.mark.parametrize("order", ORDERS)
def test_messages_in_another_order_end_the_login(locked: Locked, order: str) -> None:
    """Where the code is ILLEGAL_SASL_STATE, the server may also close the connection without a response."""
    calls, expected = ORDERS[order]
    for at_once in (True, False):
        with Attacker(locked.addresses["OPEN"]) as attacker:
            found = attacker.call(*calls) if at_once else [attacker.call(each)[0] for each in calls]
            allowed = [{ILLEGAL, None} if code == ILLEGAL else {code} for code in expected]
            assert all(code in each for code, each in zip(codes(found), allowed, strict=True)), codes(found)
            assert attacker.call(ASK) == [None]


# -- frames -----------------------------------------------------------------------------------------------------------


BYTES = {
    "no length": b"",
    "length 0": struct.pack(">i", 0),
    "length 0, often": struct.pack(">i", 0) * 1000,
    "negative length": struct.pack(">i", -1) + bytes(100),
    "most negative length": struct.pack(">i", -(2**31)) + bytes(100),
    "2 GiB": struct.pack(">i", 2**31 - 1) + bytes(100),
    "one byte too many": struct.pack(">i", 524_289) + bytes(100),
    "unfinished length": b"\0\0",
    "unfinished frame": struct.pack(">i", 100) + bytes(50),
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "TLS hello": bytes.fromhex("16030100fe010000fa0303") + bytes(245),
    "SSLv2 hello": bytes.fromhex("802e0100020015000000100100800300800700c0060040020080040080") + bytes(20),
    "Kerberos": framed(b"\x60\x82\x01\x00" + bytes(100)),
    "header that ends early": framed(b"\0\x11"),
    "client id that ends early": framed(struct.pack(">hhih", 17, 1, 1, 1000)),
    "mechanism that ends early": framed(struct.pack(">hhihh", 17, 1, 1, -1, 1000)),
    "token that ends early": encoded(choose("PLAIN")) + framed(struct.pack(">hhihi", 36, 0, 1, -1, 1_000_000)),
    "token of -2 bytes": encoded(choose("PLAIN")) + framed(struct.pack(">hhihi", 36, 0, 1, -1, -2)),
}


@pytest.mark.parametrize("what", BYTES)
@pytest.mark.parametrize("listener", ["OPEN", "LOGIN", "TLS", "PLAINTEXT"])
def test_any_bytes_end_the_connection_only(locked: Locked, listener: str, what: str) -> None:
    with Attacker(locked.addresses[listener]) as attacker:
        attacker.write(BYTES[what])
        attacker.end()
        assert b"EC" not in attacker.rest()


def test_large_frame_of_the_login_is_rejected_by_its_length(attacker: Attacker) -> None:
    attacker.write(encoded(choose("PLAIN")) + struct.pack(">i", 524_289))
    assert not attacker.answer(choose("PLAIN")).error_code
    assert attacker.rest() == b""


# -- PLAIN ------------------------------------------------------------------------------------------------------------

TOKENS: dict[str, bytes] = {
    "empty password": f"\0{USER}\0".encode(),
    "empty user": f"\0\0{PASSWORD}".encode(),
    "all empty": b"\0\0",
    "no parts": b"alice",
    "two parts": f"{USER}\0{PASSWORD}".encode(),
    "four parts": f"\0{USER}\0{PASSWORD}\0".encode(),
    "five parts": f"\0{USER}\0{PASSWORD}\0{GUEST}\0x".encode(),
    "as somebody else": f"{USER}\0{GUEST}\0{GUEST_PASSWORD}".encode(),
    "password of another": f"\0{USER}\0{GUEST_PASSWORD}".encode(),
    "name in capitals": f"\0{USER.upper()}\0{PASSWORD}".encode(),
    "name with a space": f"\0{USER} \0{PASSWORD}".encode(),
    "name with a line feed": f"\0{USER}\n\0{PASSWORD}".encode(),
    "wide name": f"\0\uff41\uff4c\uff49\uff43\uff45\0{PASSWORD}".encode(),
    "name with a soft hyphen": f"\0al\u00adice\0{PASSWORD}".encode(),
    "password in capitals": f"\0{USER}\0{PASSWORD.upper()}".encode(),
    "password with a space": f"\0{USER}\0{PASSWORD} ".encode(),
    "beginning of the password": f"\0{USER}\0{PASSWORD[:-1]}".encode(),
    "enormous password": f"\0{USER}\0{PASSWORD * 30_000}".encode(),
    "enormous name": f"\0{USER * 80_000}\0{PASSWORD}".encode(),
    "enormous parts": b"\0" * 400_000,
    "no UTF-8": b"\0\xff\xfe\0\xff",
    "surrogate": b"\0alice\0\xed\xa0\x80",
    "word of the settings": f"\0user_{USER}\0{PASSWORD}".encode(),
    "wildcard": f"\0*\0{PASSWORD}".encode(),
    "principal": f"\0User:{USER}\0{PASSWORD}".encode(),
    "unknown": f"\0ANONYMOUS\0{PASSWORD}".encode(),
}


@pytest.mark.parametrize("what", TOKENS)
def test_wrong_message_of_plain_is_rejected(attacker: Attacker, what: str) -> None:
    found = attacker.call(choose("PLAIN"), say(TOKENS[what]), ASK)
    assert codes(found) == [0, FAILED, None]
    assert not found[1].auth_bytes
    assert PASSWORD not in found[1].error_message


def test_own_name_as_the_authorization_id_is_accepted(attacker: Attacker) -> None:
    assert codes(attacker.call(choose("PLAIN"), plain(GUEST, GUEST_PASSWORD, GUEST), ASK)) == [0, 0, 0]


# -- SCRAM ------------------------------------------------------------------------------------------------------------

FIRSTS = {
    "channel binding": "p=tls-unique,,n=alice,r=nonce",
    "client thinks that the server has none": "y,,n=alice,r=nonce",
    "unknown flag": "x,,n=alice,r=nonce",
    "no flag": ",,n=alice,r=nonce",
    "mandatory extension": "n,,m=ext,n=alice,r=nonce",
    "as somebody else": "n,a=alice,n=bob,r=nonce",
    "no name": "n,,n=,r=nonce",
    "no nonce": "n,,n=alice,r=",
    "nonce with a space": "n,,n=alice,r=a b",
    "nonce with a line feed": "n,,n=alice,r=a\n",
    "nonce that is not ASCII": "n,,n=alice,r=n\u00f6nce",
    "bad escape": "n,,n=al=2Zice,r=nonce",
    "escape in lower case": "n,,n=alice=2c,r=nonce",
    "bare equals sign": "n,,n=al=ice,r=nonce",
    "zero byte": "n,,n=al\0ice,r=nonce",
    "fields in another order": "n,,r=nonce,n=alice",
    "empty": "",
    "only commas": "," * 100_000,
}


UNLIKE_KAFKA = ("mandatory extension", "extension that was not signed", "many extensions")
"""Kafka ignores the first one, accepts the second one with the right proof, and never answers the third one."""


@pytest.mark.parametrize("what", FIRSTS)
@pytest.mark.parametrize("mechanism", SCRAM)
def test_wrong_first_message_of_scram_is_rejected(
    locked: Locked, attacker: Attacker, mechanism: str, what: str
) -> None:
    if what in UNLIKE_KAFKA and locked.name == "apache-kafka":
        return
    found = attacker.call(choose(mechanism), say(FIRSTS[what]), ASK)
    assert codes(found) == [0, FAILED, None]


FINALS: dict[str, Callable[[str], str]] = {
    "no proof": lambda text: text.rpartition(",p=")[0],
    "empty proof": lambda text: text.rpartition(",p=")[0] + ",p=",
    "short proof": lambda text: text.rpartition(",p=")[0] + ",p=eA==",
    "zero proof": lambda text: text.rpartition(",p=")[0] + ",p=" + "A" * 43 + "=",
    "no base64": lambda text: text.rpartition(",p=")[0] + ",p=!!!!",
    "enormous proof": lambda text: text.rpartition(",p=")[0] + ",p=" + "A" * 400_000,
    "two proofs": lambda text: text + ",p=" + "A" * 43 + "=",
    "only the client's nonce": lambda text: text.replace(text.split(",")[1], "r=clients-nonce"),
    "another nonce": lambda text: text.replace(text.split(",")[1], text.split(",")[1][:-1] + "~"),
    "longer nonce": lambda text: text.replace(text.split(",")[1], text.split(",")[1] + "~"),
    "other channel binding": lambda text: text.replace("c=biws", "c=cD10bHMtdW5pcXVlLCw="),
    "binding of the flag y": lambda text: text.replace("c=biws", "c=eSws"),
    "extension that was not signed": lambda text: text.replace(",p=", ",x=y,p="),
    "many extensions": lambda text: text.replace(",p=", ",x=y" * 50_000 + ",p="),
    "empty": lambda _: "",
}


@pytest.mark.parametrize("what", FINALS)
@pytest.mark.parametrize("mechanism", SCRAM)
def test_changed_last_message_of_scram_is_rejected(
    locked: Locked, attacker: Attacker, mechanism: str, what: str
) -> None:
    if what in UNLIKE_KAFKA and locked.name == "apache-kafka":
        return
    client = Scram(mechanism, USER, PASSWORD, "clients-nonce")
    _, challenge = attacker.call(choose(mechanism), say(client.first()))
    final = client.answer(bytes(challenge.auth_bytes))
    assert final is not None
    found = attacker.call(say(FINALS[what](final.decode())), ASK)
    if found[0] is None:
        assert locked.name == "apache-kafka", "Kafka closes the connection if the proof has a wrong length"
        return
    assert codes(found) == [FAILED, None]
    assert not found[0].auth_bytes, "the server does not prove itself to a client that did not"


@pytest.mark.parametrize("mechanism", SCRAM)
@pytest.mark.parametrize(
    ("user", "password"), [(USER, ""), (USER, "x" * 400_000), (USER, GUEST_PASSWORD), ("nobody", PASSWORD), ("*", "x")]
)
def test_wrong_password_of_scram_fails_in_the_last_step(
    locked: Locked, attacker: Attacker, mechanism: str, user: str, password: str
) -> None:
    client = Scram(mechanism, user, password, "clients-nonce")
    [_, challenge] = attacker.call(choose(mechanism), say(client.first()))
    if locked.name == "apache-kafka" and challenge.error_code:
        return  # Kafka says in the first step that a user does not exist
    final = client.answer(bytes(challenge.auth_bytes))
    assert final is not None
    assert codes(attacker.call(say(final), ASK)) == [FAILED, None]


@pytest.mark.parametrize("mechanism", SCRAM)
def test_replayed_messages_of_scram_are_rejected(locked: Locked, mechanism: str) -> None:
    with Attacker(locked.addresses["OPEN"]) as victim:
        begin, final = scram(victim, mechanism, GUEST, GUEST_PASSWORD)
        assert codes(victim.call(ASK)) == [0]
        for listener, chosen in (("OPEN", mechanism), ("OPEN", SCRAM[mechanism == SCRAM[0]])):
            with Attacker(locked.addresses[listener]) as attacker:
                found = attacker.call(choose(chosen), say(begin), say(final), ASK)
                assert codes(found) == [0, 0, FAILED, None]
        with Attacker(locked.addresses["OPEN"]) as attacker:
            assert codes(attacker.call(choose(mechanism), say(final), ASK)) == [0, FAILED, None]
        assert codes(victim.call(ASK)) == [0], "the attack does not disturb the victim"


def test_servers_nonce_is_new_in_each_login(locked: Locked) -> None:
    nonces = set()
    for _ in range(20):
        with Attacker(locked.addresses["OPEN"]) as attacker:
            _, challenge = attacker.call(choose("SCRAM-SHA-256"), first())
            nonces.add(bytes(challenge.auth_bytes).split(b",")[0])
    assert len(nonces) == 20
    assert all(len(nonce) > len("r=clients-nonce") + 16 for nonce in nonces)


def test_login_counts_for_its_own_connection_only(locked: Locked, attacker: Attacker) -> None:
    attacker.log_in(USER, PASSWORD)
    assert codes(attacker.call(ASK)) == [0]
    with Attacker(locked.addresses["OPEN"]) as other:
        assert codes(other.call(ASK)) == [None]
    assert codes(attacker.call(ASK)) == [0]

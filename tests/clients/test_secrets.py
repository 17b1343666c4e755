"""No secret is where it does not belong: not in logs, errors, titles of processes, answers and files.

Broker, clients and commands log at DEBUG, and asyncio logs at its most. Each secret is a unique text, and everything
that was written is searched for all of them.
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import stat
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncelog.protocol.headers import RequestHeader, encode_request_header
from oncelog.protocol.messages.metadata import MetadataRequest
from oncelog.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from oncelog.protocol.messages.sasl_handshake import SaslHandshakeRequest
from oncelog.protocol.schema import Message
from support.marked_secrets import SECRETS, USER, MarkedBroker
from support.secured_oncelog import MECHANISMS

MODULE = "x.PlainLoginModule required"
CLIENT = """
import asyncio, json, traceback
from oncelog import Admin, Consumer, Producer, aio
options = {key.replace(".", "_"): value for key, value in json.loads(sys.argv[1]).items()}
at = options.pop("bootstrap_servers")
quick = {"max_block_ms": 4000, "delivery_timeout_ms": 4000, "request_timeout_ms": 2000}

def show(thing):
    print(repr(thing), str(thing), vars(thing) if hasattr(thing, "__dict__") else "")

def attempt(work):
    try:
        work()
    except BaseException as error:
        traceback.print_exc()
        print(repr(error), error.args, vars(error))

def produce():
    with Producer(at, **options, **quick) as producer:
        show(producer)
        producer.send("t", b"x").result()

def describe():
    with Admin(at, **options) as admin:
        show(admin)
        print(admin.describe_cluster())

def consume():
    with Consumer(at, group_id="g", **options) as consumer:
        show(consumer)
        consumer.subscribe(["t"])
        print(consumer.poll(1))

async def never_awaited():
    async with aio.Producer(at, **options, **quick) as producer:
        show(producer)
        future = asyncio.ensure_future(producer.send("t", b"x"))
        await asyncio.sleep(0.5)

for work in (produce, describe, consume, lambda: asyncio.run(never_awaited(), debug=True)):
    attempt(work)
"""
FOREIGN = """
import json
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
admin = AdminClient(json.loads(sys.argv[1]))
user, password, altered = sys.argv[2:]
for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
    wanted = UserScramCredentialUpsertion(user, ScramCredentialInfo(mechanism, 4096), password.encode())
    for future in admin.alter_user_scram_credentials([wanted]).values():
        future.result(30)
print(admin.describe_user_scram_credentials([user])[user].result(30).scram_credential_infos)
def change(entries, incremental):
    resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=entries) if incremental else ConfigResource(
        ResourceType.BROKER, "1", set_config=entries)
    call = admin.incremental_alter_configs if incremental else admin.alter_configs
    try:
        for future in call([resource]).values():
            future.result(30)
    except Exception as error:
        print("alter:", error)
line = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{user}="{altered}'
for name, value in (
    ("listener.name.sasl_ssl.ssl.keystore.password", altered),
    ("ssl.keystore.password", altered),
    ("listener.name.sasl_ssl.ssl.keystore.key", "-----BEGIN PRIVATE KEY-----" + altered),
    ("sasl.jaas.config", line),
    ("listener.name.sasl_ssl.plain.sasl.jaas.config", line + '";'),
    ("no.such.setting.password", altered),
    ("log.retention.hours", altered),
):
    change([ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)], True)
(future,) = admin.describe_configs([ConfigResource(ResourceType.BROKER, "1")]).values()
print({name: (each.value, each.is_sensitive, each.synonyms) for name, each in future.result(30).items()})
"""


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MarkedBroker]:
    broker = MarkedBroker(tmp_path_factory.mktemp("marked"))
    yield broker
    broker.stop()


def framed(request: Message, version: int) -> bytes:
    payload = encode_request_header(RequestHeader(request.API_KEY, version, 1, "raw")) + request.encode(version)
    return struct.pack(">i", len(payload)) + payload


def raw_frames(password: str) -> Iterator[tuple[bytes, ...]]:
    """Yield requests of wrong logins, each tuple for one connection."""
    plain = f"\0{USER}\0{password}".encode()
    authenticate = framed(SaslAuthenticateRequest(auth_bytes=plain), 2)
    bare = struct.pack(">i", len(plain)) + plain
    yield (authenticate,)
    yield framed(SaslHandshakeRequest(mechanism=password), 1), authenticate
    for mechanism in MECHANISMS:
        yield framed(SaslHandshakeRequest(mechanism=mechanism), 1), authenticate
        yield framed(SaslHandshakeRequest(mechanism=mechanism), 0), bare
    for message in (plain * 2, plain[1:], b"\0" + plain, f"n,,n={USER},r=nonce,{password}".encode(), b"\xff" + plain):
        for mechanism in MECHANISMS:
            yield (
                framed(SaslHandshakeRequest(mechanism=mechanism), 1),
                framed(SaslAuthenticateRequest(auth_bytes=message), 2),
            )
    yield (framed(MetadataRequest(topics=[]), 9)[:-2] + plain,)
    yield (authenticate[:-8],)
    yield (bare,)
    yield (f"GET /?password={password} HTTP/1.1\r\n\r\n".encode(),)


def answers(marked: MarkedBroker, frames: tuple[bytes, ...]) -> bytes:
    """Send frames on a connection of their own, and return all bytes of the answers."""
    host, _, port = marked.bootstrap.partition(":")
    context = ssl.create_default_context(cafile=str(marked.ca))
    received = bytearray()
    with (
        socket.create_connection((host, int(port)), timeout=30) as made,
        context.wrap_socket(made, server_hostname="localhost") as secured,
        contextlib.suppress(OSError),  # also ssl.SSLError: the broker waits for more, or has closed the connection
    ):
        for frame in frames:
            secured.sendall(frame)
        secured.settimeout(1)
        while data := secured.recv(65536):
            received += data
    return bytes(received)


def test_failed_logins_over_the_wire_show_no_secret(marked: MarkedBroker) -> None:
    for number, frames in enumerate(raw_frames(SECRETS["wrong"])):
        marked.folder.joinpath(f"answer-{number}").write_bytes(answers(marked, frames))
    assert b"Authentication failed" in b"".join(path.read_bytes() for path in marked.folder.glob("answer-*"))
    assert not marked.found()


def test_clients_show_no_secret(marked: MarkedBroker) -> None:
    right = marked.options("PLAIN", SECRETS["plain"])
    marked.program("admin", FOREIGN, json.dumps(right), "carol", SECRETS["scram"], SECRETS["altered"])
    for mechanism in MECHANISMS:
        password = SECRETS["plain" if mechanism == "PLAIN" else "scram"]
        user = USER if mechanism == "PLAIN" else "carol"
        marked.program(f"good-{mechanism}", CLIENT, json.dumps(marked.options(mechanism, password, user)))
        marked.program(f"bad-{mechanism}", CLIENT, json.dumps(marked.options(mechanism, SECRETS["wrong"], user)))
    line = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="{}'
    for name, text in (("jaas", line + '";'), ("no-quote", line), ("no-end", line + '"')):
        broken = {**right, "sasl.jaas.config": text.format(SECRETS["client-jaas"])}
        del broken["sasl.username"], broken["sasl.password"]
        marked.program(f"client-{name}", CLIENT, json.dumps(broken))
    certificate, key = marked.client_pair.write(marked.folder, "client", SECRETS["key-password"])
    marked.allowed.add(key)
    damaged = marked.folder / "damaged.key"
    damaged.write_bytes(marked.client_pair.key_pem()[:-60])
    marked.allowed.add(damaged)
    for name, path, password in (
        ("key", key, SECRETS["wrong-key-password"]),
        ("damaged", damaged, SECRETS["wrong-key-password"]),
    ):
        own = {
            "ssl.certificate.location": str(certificate),
            "ssl.key.location": str(path),
            "ssl.key.password": password,
        }
        marked.program(f"client-{name}", CLIENT, json.dumps({**right, **own}))
    inline = {"ssl.keystore.type": "PEM", "ssl.keystore.key": marked.client_pair.key_pem().decode()}
    marked.program("client-inline", CLIENT, json.dumps({**right, **inline}))
    altered = (marked.folder / "admin.out").read_text()
    assert altered.count("alter:") >= 6, (altered, (marked.folder / "admin.err").read_text()[-2000:])
    assert "jaas" in altered
    assert "rejected the login" in (marked.folder / "bad-PLAIN.err").read_text()
    assert not marked.found()


def test_commands_show_no_secret(marked: MarkedBroker) -> None:
    oncelog = Path(sys.executable).with_name("oncelog")
    for name, password in (("right", SECRETS["plain"]), ("false", SECRETS["wrong"])):
        path = marked.folder / f"{name}.properties"
        options = marked.options("PLAIN", password)
        address = options.pop("bootstrap.servers")
        path.write_text("".join(f"{key}={value}\n" for key, value in options.items()))
        marked.allowed.add(path)
        for number, words in enumerate(
            ("topic create commands", "topic list", "cluster describe --configs", "acl list", "topic describe commands")
        ):
            marked.run(
                f"{name}-{number}", [oncelog, *words.split()], "-b", address, "--command-config", str(path), stdin=""
            )
    described = (marked.folder / "right-2.out").read_text()
    assert "jaas" in described, described[-500:]
    assert "rejected the login" in (marked.folder / "false-1.err").read_text()
    assert not marked.found()


@pytest.mark.parametrize(
    ("name", "changed", "reason"),
    [
        ("key-password", {"ssl.key.password": SECRETS["wrong-key-password"]}, "ssl.key.password"),
        ("no-key-password", {"ssl.key.password": ""}, "ssl.key.password"),
        ("store-password", {"ssl.keystore.location": "broker.p12", "ssl.keystore.type": "PKCS12"}, "password"),
        ("key-as-value", {"ssl.keystore.key": "-----BEGIN PRIVATE KEY-----" + SECRETS["too-late"]}, "ssl.keystore"),
        (
            "no-quote",
            {"listener.name.sasl_ssl.plain.sasl.jaas.config": f'{MODULE} user_a="{SECRETS["other"]};'},
            "a quote has no end",
        ),
        (
            "no-module",
            {"listener.name.sasl_ssl.plain.sasl.jaas.config": f'{SECRETS["other"]} required user_a="b";'},
            "login module",
        ),
        ("no-end", {"listener.name.sasl_ssl.plain.sasl.jaas.config": SECRETS["other"]}, "it must be"),
        ("wrong-type", {"listener.name.sasl_ssl.ssl.client.auth": "yes"}, "ssl.client.auth"),
    ],
)
def test_failed_start_shows_no_secret(marked: MarkedBroker, name: str, changed: dict[str, str], reason: str) -> None:
    if changed.get("ssl.keystore.location"):
        changed = {"ssl.keystore.location": str(marked.store), "ssl.keystore.password": SECRETS["wrong-key-password"]}
    process = marked.start(f"start-{name}", marked.write_settings(changed, f"start-{name}.properties"))
    assert process.popen.wait(60) == 1
    process.kill()
    text = process.stderr_path.read_text()
    assert reason in text
    assert not marked.found()


def test_files_with_credentials_are_for_their_owner_only(marked: MarkedBroker) -> None:
    modes = {suffix: (marked.data / f"metadata.sqlite{suffix}").stat().st_mode for suffix in ("", "-wal", "-shm")}
    assert {suffix: oct(stat.S_IMODE(mode)) for suffix, mode in modes.items()} == dict.fromkeys(modes, "0o600")
    assert not [path for path in marked.temporary.rglob("*") if path.is_file()], "nothing temporary is left"

"""The files of `oncelog up --secure`: created once, kept, renewed, and refused if they are damaged."""

from __future__ import annotations

import datetime
import os
import shutil
import ssl
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from oncelog.broker.folder_locks import StartError
from oncelog.cli.certificates import LIFE, Pair
from oncelog.cli.secure_files import AUTHORITY, BROKER, CLIENT, FILES, SecureFiles, format_properties
from oncelog.net.properties import parse_properties

NOW = datetime.datetime(2026, 5, 4, tzinfo=datetime.UTC)
NAMES = ("localhost", "127.0.0.1", "::1")
DAY = datetime.timedelta(days=1)


def prepared(data: Path, names: tuple[str, ...] = NAMES, now: datetime.datetime = NOW) -> SecureFiles:
    files = SecureFiles(str(data))
    files.prepare(names, now, lambda _: None)
    return files


def contents(data: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (data / "secure").iterdir()}


def names_of(data: Path) -> set[str]:
    content = contents(data)[BROKER]
    return Pair(content, content).names()


def test_only_the_user_may_read_the_files(tmp_path: Path) -> None:
    former = os.umask(0)
    try:
        files = prepared(tmp_path)
    finally:
        os.umask(former)
    assert sorted(contents(tmp_path)) == sorted(FILES)
    assert stat.S_IMODE(files.folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in files.folder.iterdir()} == {0o600}
    assert len(files.password.value) >= 32
    assert files.password.value not in repr(files.__dict__)


def test_second_start_changes_nothing(tmp_path: Path) -> None:
    first = prepared(tmp_path)
    before = contents(tmp_path)
    second = prepared(tmp_path, now=NOW + 365 * DAY)
    assert contents(tmp_path) == before
    assert second.notes == []
    assert second.password.value == first.password.value
    assert second.broker_password.value == first.broker_password.value


def test_server_has_a_valid_chain(tmp_path: Path) -> None:
    files = prepared(tmp_path, now=datetime.datetime.now(datetime.UTC))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(files.path(BROKER))
    client = ssl.create_default_context(cafile=files.path(AUTHORITY))
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    for host in NAMES:
        to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
        ends = [
            client.wrap_bio(to_client, to_server, server_hostname=host),
            server.wrap_bio(to_server, to_client, server_side=True),
        ]
        for end in (*ends, *ends):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
        assert ends[0].getpeercert()


def test_other_names_get_a_new_certificate_of_the_same_authority(tmp_path: Path) -> None:
    prepared(tmp_path)
    before = contents(tmp_path)
    files = prepared(tmp_path, (*NAMES, "Kafka.example.com", "b\u00fccher.example", "fe80::1%eth0"))
    after = contents(tmp_path)
    assert {name for name in FILES if before[name] != after[name]} == {BROKER}
    assert names_of(tmp_path) == {*NAMES, "kafka.example.com", "xn--bcher-kva.example", "fe80::1"}
    assert "created a new certificate" in files.notes[0]
    assert prepared(tmp_path).notes == []  # it is valid for fewer names, too
    with pytest.raises(StartError, match="is no host name"):
        prepared(tmp_path, ("x" * 80 + "\u00fc",))


def test_start_that_was_killed_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "secure.new").mkdir()
    (tmp_path / "secure.new" / "authority.key").write_text("half")

    def killed(password: str) -> None:
        assert len(password) >= 32
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        SecureFiles(str(tmp_path)).prepare(NAMES, NOW, killed)
    assert not (tmp_path / "secure").exists()
    prepared(tmp_path)
    assert not (tmp_path / "secure.new").exists()


def test_moved_directory_has_its_new_path_in_the_file_for_clients(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    first = prepared(tmp_path / "a")
    moved = tmp_path / "b \u00e9"
    (tmp_path / "a").rename(moved)
    second = prepared(moved)
    found = parse_properties((moved / "secure" / CLIENT).read_text("ascii"))
    assert found["ssl.truststore.location"] == str(moved / "secure" / AUTHORITY)
    assert second.password.value == first.password.value
    assert len(second.notes) == 1
    assert stat.S_IMODE((moved / "secure" / CLIENT).stat().st_mode) == 0o600


def delete(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def write(name: str, text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(text) and None


def replace_by_another(name: str) -> Callable[[Path], None]:
    def replace(folder: Path) -> None:
        other = folder.parent / "other"
        other.mkdir()
        prepared(other)
        shutil.copy(other / "secure" / name, folder / name)

    return replace


DAMAGE: list[tuple[Callable[[Path], None], str]] = [
    *((delete(name), f"{name} missing in") for name in FILES),
    (write(AUTHORITY, ""), "authority.pem is damaged, .* no certificate"),
    (write("authority.key", "-----BEGIN PRIVATE KEY-----\n"), "authority.pem is damaged, .* no private key"),
    (write(BROKER, "\0"), "broker.pem is damaged"),
    (write("broker.password", "\n"), "broker.password is damaged"),
    (write(CLIENT, "a=b"), "client.properties is damaged"),
    (write(CLIENT, "sasl.jaas.config=ScramLoginModule required username=bob password=b;"), "not the user admin"),
    (lambda folder: (folder / CLIENT).write_bytes(b"\xff") and None, "client.properties is damaged"),
    (replace_by_another(AUTHORITY), "do not belong together"),
    (replace_by_another(BROKER), "its certificate is not signed by authority.pem"),
    (lambda folder: (folder / "authority.key").chmod(0o640), "other users of this machine may read .*authority.key"),
    (lambda folder: folder.chmod(0o755), "other users of this machine may read .*secure"),
    (lambda folder: shutil.rmtree(folder) or write("secure", "")(folder.parent), "must be a directory"),
]


@pytest.mark.parametrize(("damage", "sentence"), DAMAGE)
def test_damaged_files_are_refused_and_stay(tmp_path: Path, damage: Callable[[Path], None], sentence: str) -> None:
    files = prepared(tmp_path)
    damage(files.folder)
    with pytest.raises(StartError, match=f"(?s){sentence}") as caught:
        prepared(tmp_path)
    assert files.password.value not in str(caught.value)
    assert files.exists()


def test_expiry_is_named_before_it_comes(tmp_path: Path) -> None:
    prepared(tmp_path)
    assert prepared(tmp_path, now=NOW + LIFE - 91 * DAY).notes == []
    (note,) = prepared(tmp_path, now=NOW + LIFE - 89 * DAY).notes
    assert "authority.pem expires on 2036-05-03" in note
    assert prepared(tmp_path, (*NAMES, "later"), now=NOW + LIFE - DAY).notes[1].startswith("created a new certificate")
    with pytest.raises(StartError, match="has expired on 2036-05-03"):
        prepared(tmp_path, now=NOW + LIFE)
    with pytest.raises(StartError, match="check the clock"):
        prepared(tmp_path, now=NOW - DAY)


def test_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "oncelog.cli.certificates", None)
    monkeypatch.delattr("oncelog.cli.certificates", raising=False)
    with pytest.raises(StartError, match=r"pip install 'oncelog\[secure\]'"):
        prepared(tmp_path)
    assert not (tmp_path / "secure").exists()


@pytest.mark.parametrize("text", ["C:\\data", " leading", "b\u00fccher \U0001f600", "a=b: #!", "tab\tand\nline"])
def test_properties_are_read_as_they_were_written(text: str) -> None:
    content = format_properties({"key": text}).decode("ascii")
    assert parse_properties(content)["key"].encode("utf-16", "surrogatepass") == text.encode("utf-16")

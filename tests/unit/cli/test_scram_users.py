"""`oncelog up --add-scram`: Kafka's syntax, where the users come from, and that no process shows a password."""

from __future__ import annotations

import re
import sys
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from oncelog import Admin
from oncelog.cli.scram_users import parse_user, scram_users
from oncelog.net.sasl_server import ScramCredential, scram_credential
from support.command_line import run
from support.processes import ManagedProcess, children

SECRET = "hunter2"
SALT = b64encode(b"salt").decode()


def credential(text: str, mechanism: str = "SCRAM-SHA-512") -> ScramCredential:
    return ScramCredential.decode(parse_user(text).credentials[mechanism])


def test_password_is_hashed_as_kafka_does() -> None:
    found = credential(f'SCRAM-SHA-512=[name="alice",password="{SECRET}",salt={SALT},iterations=5000]')
    assert found == scram_credential("SCRAM-SHA-512", SECRET, b"salt", 5000)
    assert credential("SCRAM-SHA-256=[name=alice,password=x]", "SCRAM-SHA-256").iterations == 4096


def test_salted_password_needs_no_password() -> None:
    import hashlib

    salted = b64encode(hashlib.pbkdf2_hmac("sha512", SECRET.encode(), b"salt", 4096)).decode()
    found = credential(f"SCRAM-SHA-512=[name=alice,salt={SALT},saltedpassword={salted}]")
    assert found == scram_credential("SCRAM-SHA-512", SECRET, b"salt", 4096)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (SECRET, "it must look like SCRAM-SHA-512="),
        (f"SCRAM-SHA-512={SECRET}", "it must look like SCRAM-SHA-512="),
        (f"PLAIN=[name=a,password={SECRET}]", "the mechanism must be one of SCRAM-SHA-256, SCRAM-SHA-512"),
        (f"SCRAM-SHA-512=[password={SECRET}]", "name is missing"),
        ("SCRAM-SHA-512=[name=a]", "password or saltedpassword is missing"),
        (f"SCRAM-SHA-512=[name=a,saltedpassword={SECRET}]", "saltedpassword needs salt"),
        (f"SCRAM-SHA-512=[name=a,saltedpassword={SECRET},salt={SALT}]", "saltedpassword must be base64"),
        (f"SCRAM-SHA-512=[name=a,saltedpassword={SALT},salt={SALT}]", "saltedpassword must have 64 bytes"),
        (f"SCRAM-SHA-512=[name=a,password={SECRET},salt=]", "salt must not be empty"),
        ("SCRAM-SHA-512=[name=a,password=]", "password must not be empty"),
        (f"SCRAM-SHA-512=[name=a,password={SECRET},iterations=4095]", "iterations must be a number between"),
        (f"SCRAM-SHA-512=[name=a,password={SECRET},iterations={10**30}]", "iterations must be a number between"),
        (f"SCRAM-SHA-512=[name=a,password={SECRET},and more]", "a value has no comma"),
        (
            f"SCRAM-SHA-512=[name=a,password={SECRET},size=3]",
            "only iterations, name, password, salt, ",
        ),
        (f"SCRAM-SHA-512=[name=a,password=x,{SECRET}=y]", "a value has no comma"),
        (f"{SECRET}=[name=a]", "the mechanism must be one of SCRAM-SHA-256, SCRAM-SHA-512"),
    ],
)
def test_invalid_user_is_refused_without_its_password(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)) as caught:
        parse_user(text)
    assert SECRET not in str(caught.value)


def test_mechanisms_of_a_user_are_joined(tmp_path: Path) -> None:
    (tmp_path / "users").write_text(f"SCRAM-SHA-256=[name=alice,password={SECRET}]\n\n")
    (user,) = scram_users(["SCRAM-SHA-512=[name=alice,password=x]"], [str(tmp_path / "users")])
    assert (user.name, sorted(user.credentials)) == ("alice", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
    assert "key" not in repr(user)
    with pytest.raises(click.UsageError, match="names user 'alice' twice with SCRAM-SHA-512"):
        scram_users(["SCRAM-SHA-512=[name=alice,password=x]"] * 2, [])


def test_error_names_the_line_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "users").write_text(f"SCRAM-SHA-512=[name=alice,password={SECRET}]\n{SECRET}\n")
    status, _, err = run("up", "--data", tmp_path / "data", "--add-scram-file", tmp_path / "users")
    assert status == 2
    assert "users, line 2: it must look like" in err
    assert SECRET not in err


class Started:
    """`oncelog up` with these users."""

    def __init__(self, folder: Path, *arguments: str, stdin: str = "") -> None:
        command = [Path(sys.executable).with_name("oncelog"), "up", "--port", "0", "--data", folder / "data"]
        (folder / "input").write_text(stdin)
        with (folder / "input").open() as given:
            name = f"up-{len(list(folder.iterdir()))}"  # another file for each start
            self.process = ManagedProcess([*command, *arguments], folder, name, stdin=given)
        self.process.wait_for(lambda: list(self.process.lines()), "it prints its address")
        self.address = next(iter(self.process.lines())).removeprefix("BROKERS=")

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stop() == 0

    def titles(self) -> list[bytes]:
        return [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in (self.process.pid, *children(self.process.pid))]

    def users(self) -> Iterator[str]:
        with Admin(self.address) as admin:
            yield from admin.describe_user_scram_credentials()


@pytest.mark.parametrize("brokers", ["1", "2"])
def test_users_are_added_and_no_process_shows_a_password(tmp_path: Path, brokers: str) -> None:
    given = (
        *("--brokers", brokers, "--add-scram", f"SCRAM-SHA-512=[name=alice,password={SECRET}]"),
        f"--add-scram=SCRAM-SHA-256=[name=bob,password={SECRET}]",
    )
    with Started(tmp_path, *given, "--add-scram-file", "-", stdin="SCRAM-SHA-512=[name=carol,password=x]") as started:
        assert list(started.users()) == ["alice", "bob", "carol"]
        assert len(started.titles()) == 1 + int(brokers)
        assert not [title for title in started.titles() if SECRET.encode() in title]
    assert SECRET not in started.process.stderr_path.read_text()


def test_existing_user_is_left_as_it_is(tmp_path: Path) -> None:
    for text in (
        "SCRAM-SHA-512=[name=alice,password=first,iterations=5000]",
        "SCRAM-SHA-512=[name=alice,password=second]",
        "SCRAM-SHA-256=[name=alice,password=second]",
    ):
        with Started(tmp_path, "--add-scram", text) as started, Admin(started.address) as admin:
            assert admin.describe_user_scram_credentials() == {"alice": [("SCRAM-SHA-512", 5000)]}

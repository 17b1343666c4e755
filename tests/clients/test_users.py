"""Add, list and delete users of SCRAM: our Admin and the command line. Apache Kafka is the control."""

from __future__ import annotations

import asyncio
import os
import pty
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from oncelog import Admin, aio, errors
from oncelog.client.admin.users import (
    ScramCredentialInfo,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from oncelog.protocol.errors import ErrorCode
from support.command_line import ONCELOG, Tool
from support.servers import Server

PASSWORD = "hunter2, of \u00e4lice ="


@pytest.fixture
def admin(server: Server, name: str) -> Iterator[Admin]:
    with Admin(server.bootstrap) as made:
        yield made


@pytest.fixture
def user(admin: Admin, name: str) -> Iterator[str]:
    """Return the name of a user that does not exist. Delete it at the end."""
    yield name
    found = admin.describe_user_scram_credentials(name)
    for each in found.get(name, []):
        admin.alter_user_scram_credentials(UserScramCredentialDeletion(name, each.mechanism))


def test_user_is_created_changed_and_deleted(admin: Admin, user: str) -> None:
    admin.alter_user_scram_credentials(UserScramCredentialUpsertion(user, PASSWORD))
    assert admin.describe_user_scram_credentials(user) == {user: [ScramCredentialInfo("SCRAM-SHA-512", 4096)]}
    admin.alter_user_scram_credentials(UserScramCredentialUpsertion(user, PASSWORD, "SCRAM-SHA-256", 8192, b"salt"))
    admin.alter_user_scram_credentials(UserScramCredentialDeletion(user, "SCRAM-SHA-512"))
    assert admin.describe_user_scram_credentials()[user] == [("SCRAM-SHA-256", 8192)]
    admin.alter_user_scram_credentials(UserScramCredentialDeletion(user, "SCRAM-SHA-256"))
    assert admin.describe_user_scram_credentials([user, user]) == {}
    with pytest.raises(errors.RequestError, match="does not exist") as missing:
        admin.alter_user_scram_credentials(UserScramCredentialDeletion(user))
    assert missing.value.code is ErrorCode.RESOURCE_NOT_FOUND


def test_rejected_changes_name_the_user(admin: Admin, user: str) -> None:
    twice = [UserScramCredentialUpsertion(user, PASSWORD), UserScramCredentialUpsertion(user, "other")]
    with pytest.raises(errors.RequestError, match=f"user '{user}'") as caught:
        admin.alter_user_scram_credentials(twice)
    assert caught.value.code is ErrorCode.DUPLICATE_RESOURCE
    with pytest.raises(errors.ConfigError, match="iterations must be between 4096 and 16384, not 3"):
        admin.alter_user_scram_credentials(UserScramCredentialUpsertion(user, PASSWORD, iterations=3))
    with pytest.raises(errors.ConfigError, match="mechanism must be one of"):
        admin.alter_user_scram_credentials(UserScramCredentialDeletion(user, "PLAIN"))
    with pytest.raises(errors.ConfigError, match="must not be empty"):
        admin.alter_user_scram_credentials(UserScramCredentialUpsertion(user, ""))
    assert admin.describe_user_scram_credentials(user) == {}


def test_repr_hides_the_password() -> None:
    assert "hunter2" not in repr([UserScramCredentialUpsertion("alice", PASSWORD, salt=b"hunter2")])


def test_the_calls_for_asyncio(server: Server, user: str) -> None:
    async def go() -> None:
        async with aio.Admin(server.bootstrap) as admin:
            await admin.alter_user_scram_credentials([UserScramCredentialUpsertion(user, PASSWORD)])
            assert list(await admin.describe_user_scram_credentials([user])) == [user]

    asyncio.run(go())


def test_librdkafka_describes_the_same_user(server: Server, admin: Admin, user: str) -> None:
    admin.alter_user_scram_credentials(UserScramCredentialUpsertion(user, PASSWORD, iterations=5000))
    other = AdminClient({"bootstrap.servers": server.bootstrap})
    found = other.describe_user_scram_credentials([user])[user].result(30)
    assert [each.iterations for each in found.scram_credential_infos] == [5000]


# -- the command line -------------------------------------------------------------------------------------------


def test_commands(server: Server, user: str, tmp_path: Path) -> None:
    tool = Tool(server.bootstrap)
    (tmp_path / "password").write_text(f"{PASSWORD}\n")
    made = tool.json("user", "add", user, "--password-file", str(tmp_path / "password"), "--iterations", "5000")
    assert made == [{"user": user, "mechanism": "SCRAM-SHA-512", "iterations": 5000}]
    tool("user", "add", user, "--password-file", "-", "--mechanism", "scram-sha-256", stdin=PASSWORD)
    rows = [{"user": user, "mechanism": "SCRAM-SHA-256", "iterations": 4096}, *made]
    assert tool.json("user", "list", user) == rows
    assert all(row in tool.json("user", "list") for row in rows)
    assert "this deletes credentials of 1 user; add --yes" in tool.fails(2, "user", "delete", user)
    assert tool.json("user", "delete", user, "--mechanism", "SCRAM-SHA-512", "--yes") == made
    wrong = tool.fails(1, "user", "delete", user, "--mechanism", "SCRAM-SHA-512", "--yes")
    assert "has no credential for SCRAM-SHA-512" in wrong
    assert tool.json("user", "delete", user, "--yes") == rows[:1]
    for command in (("list", user), ("delete", user, "--yes")):
        assert f"no SCRAM user has the name '{user}'" in tool.fails(1, "user", *command)


def test_password_is_read_without_a_command_line(server: Server, user: str, tmp_path: Path) -> None:
    tool = Tool(server.bootstrap)
    assert "there is no terminal to ask for the password" in tool.fails(2, "user", "add", user)
    (tmp_path / "lines").write_text("a\nb\n")
    for path, error in (
        ("lines", "must have one line, the password"),
        ("missing", "No such file"),
    ):
        assert error in tool.fails(1, "user", "add", user, "--password-file", str(tmp_path / path))
    assert "stdin must have one line" in tool.fails(1, "user", "add", user, "--password-file", "-")
    assert "iterations must be between" in tool.fails(
        1, "user", "add", user, "--password-file", "-", "--iterations", "7", stdin="x"
    )


def test_prompt_asks_twice_and_shows_nothing(server: Server, user: str) -> None:
    ours, theirs = pty.openpty()
    command = [ONCELOG, "user", "add", user, "-b", server.bootstrap]
    process = subprocess.Popen(
        command, stdin=theirs, stderr=theirs, stdout=subprocess.PIPE, start_new_session=True, text=True
    )
    os.close(theirs)
    shown = b""
    with os.fdopen(ours, "r+b", buffering=0) as terminal:
        for prompt in (b"Password of", b"Repeat for confirmation"):
            while prompt not in shown:
                shown += terminal.read(1000)
            terminal.write(b"hunter2\n")
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert user in out
    assert b"hunter2" not in shown

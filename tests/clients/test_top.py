"""`oncelog top`: one reading as JSON, what a client may not see, and the live screen in a real terminal."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from oncelog import Consumer, Producer
from oncelog.protocol.kinds import AclOperation, AclResource
from support.command_line import ONCELOG, Tool
from support.permissions import Grant, GuardedServer, grant
from support.processes import wait_until
from support.servers import Server
from support.terminal import Terminal
from support.transactions import ended, written

ENTER_SCREEN, LEAVE_SCREEN, SHOW_CURSOR = "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25h"
FAST = ("--interval", "0.5")


def row(rows: list[dict[str, Any]], **wanted: object) -> dict[str, Any]:
    """Return the only row with these values."""
    (found,) = [each for each in rows if all(each[key] == value for key, value in wanted.items())]
    return found


@pytest.fixture
def open_transaction(server: Server, tool: Tool, name: str) -> Iterator[Producer]:
    """Leave a transaction open in partition 1 of a topic that a group has read in part."""
    tool("topic", "create", name, "-p", "2")
    with Producer(server.bootstrap) as plain:
        for _ in range(5):
            plain.send(name, b"x", partition=1)
    with Consumer(server.bootstrap, group_id=name) as consumer:
        consumer.commit({(name, 1): 2})
    with Producer(server.bootstrap, transactional_id=name) as producer:
        producer.begin_transaction()
        producer.send(name, b"open", partition=1)
        producer.flush()
        with Producer(server.bootstrap) as plain:
            plain.send(name, b"after", partition=1)
        yield producer
        with contextlib.suppress(Exception):
            producer.abort_transaction()


@pytest.mark.usefixtures("open_transaction")
def test_once_shows_what_holds_readers_back(tool: Tool, server: Server, name: str) -> None:
    found = tool.json("top", "--once", *FAST)
    topic = row(found["topics"], topic=name)
    assert (topic["partitions"], topic["lso_distance"], topic["held_by"], topic["hanging"]) == (2, 2, name, False)
    assert (topic["records_per_s"], topic["unread"], topic["offline"], topic["problem"]) == (0, 0, 0, "")
    assert topic["size_bytes"] > 0
    group = row(found["groups"], group=name)
    assert (group["lag"], group["lag_to_high_watermark"], group["partitions"], group["state"]) == (3, 5, 1, "Empty")
    transaction = row(found["transactions"], transactional_id=name)
    assert (transaction["state"], transaction["holds_back"], transaction["partitions"]) == ("Ongoing", [f"{name}-1"], 1)
    assert transaction["age_ms"] >= 0
    assert transaction["timeout_ms"] == 60_000
    brokers = found["brokers"]
    assert len(brokers) == server.bootstrap.count(",") + 1
    assert all(each["running"] for each in brokers)
    assert sum(each["controller"] for each in brokers) == 1
    assert 2 <= sum(each["leaders"] for each in brokers) <= found["read"]["partitions"]["total"]
    assert found["reachable"] is True
    assert found["troubles"] == []
    assert found["requests"]["turn"]["DESCRIBE_PRODUCERS"] >= 1


def test_once_shows_rates(tool: Tool, server: Server, name: str) -> None:
    tool("topic", "create", name)
    done = threading.Event()

    def produce() -> None:
        with Producer(server.bootstrap, linger_ms=0) as producer:
            while not done.is_set():
                producer.send(name, bytes(1000))
                producer.flush()

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        topic = row(tool.json("top", "--once", "--interval", "1")["topics"], topic=name)
    finally:
        done.set()
        thread.join()
    assert topic["records_per_s"] > 0
    assert topic["bytes_per_s"] > topic["records_per_s"] * 1000
    assert topic["lso_distance"] == 0, "records that arrive between two requests are not uncommitted"


@pytest.mark.parametrize(
    ("only", "apis"),
    [
        ("brokers", {"LIST_OFFSETS", "DESCRIBE_LOG_DIRS"}),
        ("topics", {"LIST_OFFSETS", "DESCRIBE_LOG_DIRS", "LIST_TRANSACTIONS"}),
        ("groups", {"LIST_GROUPS", "OFFSET_FETCH", "LIST_OFFSETS"}),
        ("transactions", {"LIST_OFFSETS", "LIST_TRANSACTIONS"}),
    ],
)
def test_only_one_subject_is_read(tool: Tool, server: Server, name: str, only: str, apis: set[str]) -> None:
    tool("topic", "create", name)
    with Consumer(server.bootstrap, group_id=name) as consumer:
        consumer.commit({(name, 0): 0})
    found = tool.json("top", "--once", *FAST, "--only", only)
    others = {"topics", "groups", "transactions", "brokers"} - {only}
    assert not others & set(found)
    optional = {"METADATA", "DESCRIBE_PRODUCERS", "DESCRIBE_TRANSACTIONS"}
    assert set(found["requests"]["turn"]) - optional == apis | {"DESCRIBE_CLUSTER"}


def test_each_reading_is_a_line_of_json(tool: Tool) -> None:
    command = [str(ONCELOG), "top", "--only", "brokers", "--format", "json", *FAST]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=tool.env) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first, second = (json.loads(process.stdout.readline()) for _ in range(2))
        assert second["time_ms"] > first["time_ms"]
        process.stdout.close()  # the reader has enough
        assert process.stderr.read() == ""
    assert process.returncode == 0


@pytest.mark.usefixtures("open_transaction")
def test_tables_are_printed_without_a_terminal(tool: Tool) -> None:
    shown = tool("top", "--once", *FAST)
    assert "\x1b" not in shown
    assert "  Ongoing  " in shown
    for heading in ("\nTOPIC ", "\nGROUP ", "\nTRANSACTION ", "\nBROKER "):
        assert heading in shown


def test_tables_in_a_file_are_wide(tool: Tool, name: str) -> None:
    long = "0-" + name + 100 * "x"  # the table shows the first topics only
    tool("topic", "create", long)
    env = {key: value for key, value in tool.env.items() if key != "COLUMNS"}
    command = [str(ONCELOG), "top", "--once", *FAST, "--only", "topics"]
    shown = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
    tool("topic", "delete", long, "--yes")  # it would fill the narrow screen of another test
    assert long in shown


# -- permissions --------------------------------------------------------------------------------------------------


def test_forbidden_parts_are_named(guarded: GuardedServer, name: str) -> None:
    with guarded.administrator() as administrator:
        administrator.create_topic(name)
        grant(administrator, [Grant(AclOperation.DESCRIBE, AclResource.TOPIC, name)])
    tool = Tool(guarded.bootstrap)
    found = tool.json("top", "--once", *FAST)
    assert [each["topic"] for each in found["topics"]] == [name]
    assert found["topics"][0]["records_per_s"] == 0
    assert found["topics"][0]["bytes_per_s"] is None, "sizes need DESCRIBE of the cluster"
    assert found["groups"] == []
    assert "(CLUSTER_AUTHORIZATION_FAILED)" in next(
        each["text"] for each in found["troubles"] if each["about"] == "sizes"
    )
    shown = tool("top", "--once", *FAST)
    assert "\nsizes: " in shown


def test_holder_is_unknown_to_a_client_that_may_not_read_the_topic(guarded: GuardedServer, name: str) -> None:
    with guarded.administrator() as administrator:
        administrator.create_topic(name)
        grant(administrator, [Grant(AclOperation.DESCRIBE, AclResource.TOPIC, name)])
        who = administrator.session(name)
        written(administrator, name, who, name, [b"open"])
        found = Tool(guarded.bootstrap).json("top", "--once", *FAST)
        topic = row(found["topics"], topic=name)
        assert (topic["lso_distance"], topic["held_by"], topic["hanging"]) == (1, None, False)
        assert found["transactions"] == [], "the coordinator lists only what the client may describe"
        assert "(TOPIC_AUTHORIZATION_FAILED)" in next(
            each["text"] for each in found["troubles"] if each["about"] == "producers"
        )
        ended(administrator, name, who, commit=False)


# -- the live screen ------------------------------------------------------------------------------------------------


@pytest.fixture
def in_terminal(tool: Tool) -> Iterator[Callable[..., Terminal]]:
    """Run `oncelog top` in terminals, which are closed afterwards."""
    made: list[Terminal] = []

    def run(*arguments: str, env: dict[str, str] | None = None, **size: int) -> Terminal:
        command = [ONCELOG, "top", *FAST, *arguments]
        made.append(Terminal(command, {**tool.env, "TERM": "xterm-256color", **(env or {})}, **size))
        return made[-1]

    yield run
    for each in made:
        each.close()


def assert_terminal_is_restored(terminal: Terminal) -> None:
    written = terminal.raw()
    assert written.count(ENTER_SCREEN) == written.count(LEAVE_SCREEN) >= 1
    assert written.rindex(LEAVE_SCREEN) > written.rindex(ENTER_SCREEN)
    assert written.rindex(SHOW_CURSOR) > written.rindex("\x1b[?25l")
    assert terminal.modes() == terminal.attributes
    assert "Traceback" not in written


def test_live_screen_follows_a_transaction(
    in_terminal: Callable[..., Terminal], open_transaction: Producer, name: str
) -> None:
    terminal = in_terminal(columns=160, lines=400)  # other tests have topics and transactions, too
    terminal.wait_for(f"{name}-1")  # it holds the partition back
    assert any(line.startswith(name) and "Ongoing" in line for line in terminal.frame())
    open_transaction.commit_transaction()
    terminal.wait_until_gone(f"{name}-1")
    assert any(line.startswith(name) for line in terminal.frame()), "the topic is still there"
    terminal.type(b"q")
    assert terminal.wait() == 0
    assert_terminal_is_restored(terminal)


def test_ctrl_c_and_sigterm_restore_the_terminal(in_terminal: Callable[..., Terminal]) -> None:
    for end, status in ((lambda each: each.type(b"\x03"), 130), (lambda each: each.process.terminate(), -15)):
        terminal = in_terminal("--only", "brokers")
        terminal.wait_for("running")
        assert terminal.modes() != terminal.attributes, "keys are read one by one"
        end(terminal)
        assert terminal.wait() == status
        assert_terminal_is_restored(terminal)


def test_ctrl_z_restores_the_terminal_until_the_program_continues(in_terminal: Callable[..., Terminal]) -> None:
    terminal = in_terminal("--only", "brokers")
    terminal.wait_for("running")
    during = terminal.modes()
    terminal.type(b"\x1a")
    wait_until(lambda: stopped(terminal.process.pid), "the program stops")
    wait_until(lambda: LEAVE_SCREEN in terminal.raw() and shows_cursor(terminal), "its last output is read")
    assert_terminal_is_restored(terminal)
    seen = len(terminal.raw())
    terminal.process.send_signal(signal.SIGCONT)
    wait_until(lambda: "running" in terminal.raw()[seen:], "it draws again")
    assert terminal.modes() == during
    terminal.type(b"q")
    assert terminal.wait() == 0
    assert_terminal_is_restored(terminal)


def shows_cursor(terminal: Terminal) -> bool:
    return terminal.raw().rfind(SHOW_CURSOR) > terminal.raw().rfind("\x1b[?25l")


def stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_terminal_that_cannot_be_redrawn_gets_tables(in_terminal: Callable[..., Terminal]) -> None:
    terminal = in_terminal("--only", "brokers", env={"TERM": "dumb"})
    wait_until(lambda: terminal.raw().count("running") > 1, "two readings are printed")
    terminal.type(b"\x03")
    assert terminal.wait() == 130
    assert ENTER_SCREEN not in terminal.raw()
    assert terminal.modes() == terminal.attributes


def test_program_ends_with_its_terminal(in_terminal: Callable[..., Terminal]) -> None:
    terminal = in_terminal("--only", "brokers")
    terminal.wait_for("running")
    terminal.hang_up()
    assert terminal.wait() != 0


def test_unreachable_broker_is_reported_at_the_start(tool: Tool) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        said = tool.fails(1, "top", "--once", "-b", f"127.0.0.1:{nobody.getsockname()[1]}")
    assert said.startswith("oncelog: no broker can be reached")
    assert said.count("\n") == 1


def test_narrow_screen_keeps_the_most_important_columns(
    in_terminal: Callable[..., Terminal], tool: Tool, name: str
) -> None:
    tool("topic", "create", f"{name}-{'long' * 50}")
    terminal = in_terminal("--only", "topics", columns=30, lines=12)
    terminal.wait_for("RECORDS/S")
    frame = terminal.frame()
    assert max(map(len, frame)) <= 30
    assert len(frame) <= 12
    assert "HELD BY" not in "".join(frame)
    terminal.resize(120, 40)
    terminal.wait_for("HELD BY")
    terminal.type(b"q")
    assert terminal.wait() == 0


def test_no_color_is_respected(in_terminal: Callable[..., Terminal]) -> None:
    terminal = in_terminal("--only", "brokers", env={"NO_COLOR": "1"})
    terminal.wait_for("running")
    terminal.type(b"q")
    assert terminal.wait() == 0
    assert "\x1b[3" not in terminal.raw().replace("\x1b[?", "")
    assert_terminal_is_restored(terminal)

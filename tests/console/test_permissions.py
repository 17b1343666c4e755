"""The console of a client that may see little, and of one that must log in."""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

from oncelog.protocol.kinds import AclOperation, AclResource
from oncelog.testing import Broker
from support.command_line import ONCELOG
from support.consoles import ConsoleProcess
from support.permissions import Grant, GuardedServer, grant
from support.transactions import ended, write_old


def test_page_that_the_client_may_not_see_says_so(
    guarded: GuardedServer, start_console: Callable[..., ConsoleProcess]
) -> None:
    console = start_console(guarded.bootstrap)
    for page in ("/topics/secret", "/topics/secret/0", "/transaction?id=secret", "/group?id=secret"):
        answer = console.get(page)
        assert answer.status == 403, (page, answer.text)
        assert "Not authorized" in answer.text, page
    for page in ("/", "/topics", "/transactions", "/producers", "/groups"):
        assert console.get(page).status == 200, page
    post = console.post("/topics/secret/produce", {"value": "x"})
    assert post.status == 403
    assert "AUTHORIZATION_FAILED" in post.text


def test_transaction_that_the_client_may_not_see_does_not_hang(
    guarded: GuardedServer, start_console: Callable[..., ConsoleProcess], name: str
) -> None:
    """Old timestamps and a list without the id are no proof: lists omit ids without an error."""
    with guarded.administrator() as administrator:
        administrator.create_topic(name)
        allowed = [
            Grant(AclOperation.READ, AclResource.TOPIC, name),
            Grant(AclOperation.ALTER, AclResource.CLUSTER),
            Grant(AclOperation.CLUSTER_ACTION, AclResource.CLUSTER),
        ]
        grant(administrator, allowed)
        who = write_old(administrator, name, 12)
        console = start_console(guarded.bootstrap)
        pages = [console.json(page) for page in ("/transactions", f"/topics/{name}/0", f"/topics/{name}/0/producers")]
        assert pages[0]["hanging"]["rows"] == []
        assert "may not describe all transactional ids" in pages[0]["not_searched"]
        assert [each["state"] for each in pages[1]["open_transactions"]] == ["unknown"]
        assert [each["agrees"] for each in pages[2]["producers"]["rows"]] == ["unknown"]
        question = console.get(f"/topics/{name}/0/abort?producer={who.producer_id}")
        assert "It is not known whether a coordinator will end this transaction" in question.text
        post = console.post(f"/topics/{name}/0/abort", {"producer": str(who.producer_id), "first_offset": "0"})
        assert post.status == 409
        ended(administrator, name, who)


def test_rejected_login_ends_the_command(tmp_path: Path) -> None:
    with Broker(secure=True) as broker:
        options = {
            name: re.sub('password="[^"]*"', 'password="wrong"', value) for name, value in broker.client_options.items()
        }
        settings = tmp_path / "client.properties"
        settings.write_text("\n".join(f"{name}={value}" for name, value in options.items()))
        command: list[str | Path] = [
            ONCELOG,
            "console",
            "-b",
            broker.bootstrap_servers,
            "--port",
            "0",
            "--command-config",
            settings,
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "Authentication failed" in done.stderr
    assert done.stdout == ""


def test_brokers_that_do_not_answer_are_reported_at_the_start(start_console: Callable[..., ConsoleProcess]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    console = start_console(f"127.0.0.1:{port}")
    assert f"127.0.0.1:{port}" in console.process.output()
    assert "the console asks them again" in console.process.output()
    assert console.get("/").status == 503


def test_address_to_listen_on_is_checked_first() -> None:
    command: list[str | Path] = [ONCELOG, "console", "-b", "127.0.0.1:1", "--host", "192.0.2.1", "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "cannot listen on 192.0.2.1:0" in done.stderr
    assert "token" not in done.stderr

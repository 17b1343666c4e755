"""Kafka's `kafka-delegation-tokens`, and a Java client that logs in with a token."""

from __future__ import annotations

import re
from pathlib import Path

from support.apache_kafka import run_tool
from support.delegation_token_servers import TokenServer, allow_describe, options
from support.secured_kafka import GUEST, PASSWORD, USER
from support.wire import until

TOOL = "org.apache.kafka.tools.DelegationTokenCommand"
NEVER = ("--max-life-time-period", "-1")


def written(file: Path, settings: dict[str, str]) -> Path:
    file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return file


def test_tokens_with_the_tool_of_kafka(token_server: TokenServer, tmp_path: Path) -> None:
    file = written(tmp_path / "alice.properties", options(token_server, USER, PASSWORD))

    def tool(*arguments: str) -> str:
        address = token_server.address_of("LOGIN")
        return run_tool(TOOL, "--bootstrap-server", address, "--command-config", file, *arguments)

    made = tool(
        "--create", *NEVER, "--renewer-principal", "User:carol", "--owner-principal", f"User:{GUEST}"
    )  # fmt: skip
    row = re.search(r"^(\S{22})\s+(\S{88})\s+User:(\w+)\s+User:(\w+)\s+\[User:carol\]", made, re.MULTILINE)
    assert row is not None, made
    token_id, hmac, owner, requester = row.groups()
    assert (owner, requester) == (GUEST, USER)
    of_owner = "--describe", "--owner-principal", f"User:{GUEST}"
    until(lambda: tool(*of_owner), lambda said: token_id in said, "the token is listed")
    assert "Total number of tokens : 0" in tool("--describe"), "the tool sends an empty list of owners"
    said = tool("--describe", "--owner-principal", "User:carol")
    assert "Total number of tokens : 1" in said
    assert hmac in said
    own = tool("--create", *NEVER)
    mine = re.search(r"^(\S{22})\s+(\S{88})\s+User:alice", own, re.MULTILINE)
    assert mine is not None, own
    renewed = tool("--renew", "--renew-time-period", "30000", "--hmac", mine[2])
    assert "Completed renew operation. New expiry date" in renewed
    assert "Completed expire operation" in tool("--expire", "--expiry-time-period", "-1", "--hmac", mine[2])
    of_alice = "--describe", "--owner-principal", f"User:{USER}"
    until(lambda: tool(*of_alice), lambda said: mine[1] not in said, "the token is removed")

    with_token = options(token_server, token_id, hmac)
    with_token["sasl.jaas.config"] = with_token["sasl.jaas.config"].replace(";", " tokenauth=true;")
    allow_describe(token_server, f"User:{GUEST}", "visible")
    java = written(tmp_path / "token.properties", with_token)
    shown = run_tool(
        "org.apache.kafka.tools.TopicCommand",
        *("--bootstrap-server", token_server.address_of("LOGIN"), "--command-config", java, "--list"),
    )
    assert "Exception" not in shown

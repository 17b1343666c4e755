"""`oncelog group describe` and `group alter` with groups of the consumer protocol (KIP-848)."""

from __future__ import annotations

from oncelog import Admin, Consumer
from support.command_line import Tool
from support.servers import Server
from support.wire import Wire, until

SESSION = "consumer.session.timeout.ms"


def test_epochs_targets_and_protocols_are_shown(tool: Tool, wire: Wire, server: Server, name: str) -> None:
    wire.create_topic(name, 2)
    classic = Consumer(server.bootstrap, group_id=name, partition_assignment_strategy="cooperative-sticky")
    modern = Consumer(server.bootstrap, group_id=name, group_protocol="consumer")
    with classic, modern, Admin(server.bootstrap) as admin:
        classic.subscribe([name])
        classic.poll(1)
        modern.subscribe([name])
        moving = False

        def settled() -> bool:
            nonlocal moving
            classic.poll(0.1)
            modern.poll(0.1)
            found = admin.describe_group(name)
            moving |= any(member.target != member.assignment for member in found.members)
            return len(classic.assignment()) == len(modern.assignment()) == 1 and found.state == "Stable"

        until(settled, bool, "both members have a partition")
        shown = tool.json("group", "describe", name)
        assert shown["type"] == "Consumer"
        assert shown["epoch"] == shown["assignment_epoch"] > 0
        assert {row["protocol"] for row in shown["members"]} == {"classic", "consumer"}
        for row in shown["members"]:
            assert row["epoch"] == shown["epoch"]
            assert row["target"] == row["partitions"]
        assert sorted(each for row in shown["members"] for each in row["partitions"]) == [f"{name}-0", f"{name}-1"]
        text = tool("group", "describe", name)
        assert f"assignor uniform  epoch {shown['epoch']}  members 2" in text.splitlines()[0]
        assert "TARGET" not in text
    assert moving, "the new member waited for a partition of the other one"


def test_settings_of_a_group_are_changed_and_reset(tool: Tool, server: Server, name: str) -> None:
    with Admin(server.bootstrap) as admin:
        assert tool.json("group", "alter", name, "-c", f"{SESSION}=50000", "--dry-run")["altered"] is False
        assert admin.describe_configs("group", name, all_=False) == {}
        assert "50000" in tool("group", "alter", name, "-c", f"{SESSION}=50000")
        assert admin.describe_configs("group", name)[SESSION] == "50000"
        tool("group", "alter", name, "--unset", SESSION)
        assert admin.describe_configs("group", name, all_=False) == {}
    assert f"did you mean {SESSION}?" in tool.fails(1, "group", "alter", name, "--unset", "consumer.session.timeout")
    assert "INVALID_CONFIG" in tool.fails(1, "group", "alter", name, "-c", f"{SESSION}=1")
    assert "nothing to change" in tool.fails(2, "group", "alter", name)

"""`oncelog group`: describe, seek, delete, and the contents of `__consumer_offsets`."""

from __future__ import annotations

import json
import time
import uuid

import pytest

from oncelog.coordinator.partitioning import partition_for
from support.command_line import Tool
from support.groups import commit, offsets_of, simple_commit, stable
from support.servers import Server
from support.wire import Wire, batch


@pytest.fixture
def group(wire: Wire) -> str:
    """Create a group that has read 5 of the 10 records of partition 0, and none of partition 1, of a topic of its
    name.
    """
    name = f"cli-{uuid.uuid4().hex[:8]}"
    wire.create_topic(name, 2)
    for number in range(10):
        wire.produce(name, batch([b"x"], timestamp=1_700_000_000_000 + number * 1000))
    simple_commit(wire, name, name, {0: 5})
    return name


def test_members_are_listed_with_their_partitions(tool: Tool, wire: Wire, server: Server, group: str) -> None:
    (member,) = stable(server.bootstrap, group, group_instance_id="one")
    shown = tool.json("group", "describe", group)
    assert {key: shown[key] for key in ("group", "state", "coordinator", "protocol_type", "assignor")} == {
        "group": group,
        "state": "Stable",
        "coordinator": 1,
        "protocol_type": "consumer",
        "assignor": "range",
    }
    (row,) = shown["members"]
    assert (row["member_id"], row["group_instance_id"], row["client_host"]) == (member.member_id, "one", "/127.0.0.1")
    assert row["partitions"] is None  # a consumer cannot decode this member's assignment
    (offset,) = shown["offsets"]
    assert {key: offset[key] for key in ("topic", "partition", "committed", "end", "lag")} == {
        "topic": group,
        "partition": 0,
        "committed": 5,
        "end": 10,
        "lag": 5,
    }
    assert {"group": group, "coordinator": 1, "type": "Classic", "protocol": "consumer", "state": "Stable"} in [
        {**row, "type": row["type"].capitalize()} for row in tool.json("group", "list", "--state", "stable")
    ]
    assert group not in tool("group", "list", "--state", "Empty")
    assert group not in tool("group", "list", "--type", "share")
    text = tool("group", "describe", group)
    where = f"coordinator 1 (__consumer_offsets-{partition_for(group, 50)})"
    assert text.splitlines()[0] == f"group {group}  state Stable  {where}  assignor range  members 1"


def test_metadata_of_offsets_is_shown_if_there_is_any(tool: Tool, wire: Wire, group: str) -> None:
    assert "METADATA" not in tool("group", "describe", group)
    assert not any(commit(wire, group, {1: 12}, group_id=group, metadata="note"))
    shown = [line.split() for line in tool("group", "describe", group).splitlines()[-3:]]
    assert [line[-1] for line in shown] == ["METADATA", "-", "note"]
    assert [row["metadata"] for row in tool.json("group", "describe", group)["offsets"]] == ["", "note"]


@pytest.mark.parametrize(
    ("where", "targets"),
    [
        (["--to-earliest"], [0]),
        (["--to-latest"], [10]),
        (["--to-current"], [5]),
        (["--to-offset", "7"], [7]),
        (["--to-offset", "700"], [10]),
        (["--shift-by", "-2"], [3]),
        (["--shift-by", "-20"], [0]),
        (["--to-datetime", "2023-11-14T22:13:23.000"], [3]),
        (["--to-datetime", "2023-11-15T00:13:23.500+02:00"], [4]),
        (["--to-datetime", "2200-01-01T00:00:00"], [10]),
        (["--by-duration", "P1DT2H30M15.5S"], [10]),
        (["--by-duration", "p1dt2h"], [10]),
        (["--to-earliest", "-t", "TOPIC"], [0, 0]),
        (["--to-latest", "-t", "TOPIC:0,1"], [10, 0]),
        (["--to-current", "-t", "TOPIC:1"], [None, 0]),
    ],
)
def test_seek_targets(tool: Tool, wire: Wire, group: str, where: list[str], targets: list[int | None]) -> None:
    options = [part.replace("TOPIC", group) for part in where]
    plan = [
        {"topic": group, "partition": number, "committed": 5 if number == 0 else None, "target": target}
        for number, target in enumerate(targets)
        if target is not None
    ]
    dry = tool.run("group", "seek", group, *options, "--format", "json")
    assert (dry.returncode, json.loads(dry.stdout)) == (0, plan)
    assert "add --execute" in dry.stderr
    assert offsets_of(wire, group) == {(group, 0): 5}


def test_seek_changes_offsets_with_execute(tool: Tool, wire: Wire, group: str) -> None:
    shown = tool("group", "seek", group, "-t", group, "--to-earliest", "--execute").splitlines()
    assert [line.split() for line in shown[1:]] == [[group, "0", "5", "0"], [group, "1", "-", "0"]]
    assert offsets_of(wire, group) == {(group, 0): 0, (group, 1): 0}


def test_invalid_seeks_are_reported(tool: Tool, server: Server, wire: Wire, group: str) -> None:
    assert "give exactly one target such as --to-earliest or --to-offset; given: none" in tool.fails(
        2, "group", "seek", group
    )
    both = tool.fails(2, "group", "seek", group, "--to-latest", "--to-offset", "1")
    assert "given: --to-latest and --to-offset" in both
    shift = tool.fails(1, "group", "seek", group, "-t", group, "--shift-by", "1")
    assert f"cannot shift the offset of {group}-1: the group has no committed offset" in shift
    assert "has no partition 9" in tool.fails(2, "group", "seek", group, "-t", f"{group}:9", "--to-latest")
    assert "--topic takes TOPIC or TOPIC:0,2" in tool.fails(
        2, "group", "seek", group, "-t", f"{group}:x", "--to-latest"
    )
    assert "--to-datetime takes" in tool.fails(2, "group", "seek", group, "--to-datetime", "yesterday")
    for text in ("P", "P1DT", "-PT1H", "1h"):
        assert "is not an ISO 8601 duration" in tool.fails(2, "group", "seek", group, f"--by-duration={text}")
    assert "no-such-topic" in tool.fails(1, "group", "seek", group, "-t", "no-such-topic", "--to-latest")
    nothing = tool.fails(1, "group", "seek", f"{group}-none", "--to-latest")
    assert "has no committed offsets" in nothing
    assert "--execute" not in nothing  # there is nothing to set
    (member,) = stable(server.bootstrap, group)
    busy = tool.fails(1, "group", "seek", group, "--to-latest", "--execute")
    assert "its state is Stable); stop them first" in busy
    member.leave()


def test_groups_and_offsets_are_deleted(tool: Tool, server: Server, wire: Wire, group: str) -> None:
    (member,) = stable(server.bootstrap, group)
    assert "NON_EMPTY_GROUP" in tool.fails(1, "group", "delete", group, "--yes")
    assert not any(
        commit(wire, group, {1: 1}, group_id=group, member_id=member.member_id, generation_id_or_member_epoch=1)
    )
    # The member reads another topic than its group's name.
    assert tool.json("group", "delete", group, "-t", f"{group}:1", "--yes") == [
        {"group": group, "deleted": [f"{group}-1"]}
    ]
    assert offsets_of(wire, group) == {(group, 0): 5}
    member.leave()
    assert tool.json("group", "delete", group, "--yes") == [{"group": group, "deleted": "all"}]
    for verb in (["delete", "--yes"], ["describe"]):
        message = tool.fails(1, "group", *verb, group)
        assert "does not exist" in message
        assert "(GROUP_ID_NOT_FOUND)" in message


def test_group_log_prints_offset_records_of_all_versions(tool: Tool, server: Server, wire: Wire, group: str) -> None:
    before = int(time.time() * 1000)
    assert not any(commit(wire, group, {1: 12}, group_id=group, version=2, retention_time_ms=60_000, metadata="note"))
    rows = [json.loads(line) for line in tool("group", "log", group).splitlines()]
    assert [row["key"] for row in rows] == [
        {"type": 1, "data": {"group": group, "topic": group, "partition": partition}} for partition in (0, 1)
    ]
    assert [(row["value"]["version"], row["value"]["data"]["offset"]) for row in rows] == [(4, 5), (1, 12)]
    committed = rows[1]["value"]["data"]
    at = committed["commitTimestamp"]
    assert before <= at <= time.time() * 1000
    assert committed == {"offset": 12, "metadata": "note", "commitTimestamp": at, "expireTimestamp": at + 60_000}
    first = rows[0]["value"]["data"]["commitTimestamp"]
    assert tool("group", "log", group, "--format", "offset-metadata").splitlines() == [
        f"[{group},{group},0]::[OffsetMetadata[5,NO_METADATA],CommitTime {first},ExpirationTime -1]",
        f"[{group},{group},1]::[OffsetMetadata[12,note],CommitTime {at},ExpirationTime {at + 60_000}]",
    ]
    assert tool("group", "log", group, "--format", "offset-and-metadata").splitlines() == [
        f"[{group},{group},0]::OffsetAndMetadata(offset=5, leaderEpoch=Optional.empty, metadata=, "
        f"commitTimestamp={first}, expireTimestamp=None)",
        f"[{group},{group},1]::OffsetAndMetadata(offset=12, leaderEpoch=Optional.empty, metadata=note, "
        f"commitTimestamp={at}, expireTimestamp=Some({at + 60_000}))",
    ]
    assert "has no offset of a group" in tool.fails(1, "group", "log", f"{group}-other")
    assert "--groups needs --format json, but --format is offset-metadata" in tool.fails(
        2, "group", "log", "--groups", "--format", "offset-metadata"
    )


def test_group_log_prints_the_home_partition_on_request(tool: Tool, wire: Wire, group: str) -> None:
    simple_commit(wire, group, group, {0: 2})  # the fixture has committed once
    home = tool.json("group", "describe", group)["home_partition"]
    plain = [json.loads(line) for line in tool("group", "log", group).splitlines()]
    found = [json.loads(line) for line in tool("group", "log", group, "--where").splitlines()]
    assert [f"__consumer_offsets-{row.pop('partition')}" for row in found] == [home, home]
    first, second = (row.pop("offset") for row in found)
    assert first < second
    assert all(row.pop("timestamp") > 0 for row in found)
    assert found == plain
    (*_, last) = tool("group", "log", group, "--where", "--format", "offset-metadata").splitlines()
    assert last.startswith(f"{home} offset {second} at 20")
    assert f"+00:00: [{group},{group},0]::[OffsetMetadata[2," in last


def test_group_log_prints_generations_and_tombstones(tool: Tool, server: Server, wire: Wire, group: str) -> None:
    (member,) = stable(server.bootstrap, group)
    member.leave()
    tool("group", "delete", group, "--yes")
    values = [json.loads(line)["value"] for line in tool("group", "log", group, "--groups").splitlines()]
    assert values[-1] is None
    generations = [value["data"] for value in values if value is not None]
    assert [(each["generation"], each["leader"]) for each in generations][-2:] == [(1, member.member_id), (2, None)]
    (shown,) = generations[-2]["members"]
    assert (shown["memberId"], shown["sessionTimeout"], shown["groupInstanceId"]) == (member.member_id, 30_000, None)
    assert tool("group", "log", group, "--format", "offset-metadata").splitlines()[-1] == f"[{group},{group},0]::NULL"

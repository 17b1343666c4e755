"""The page of one group: members, assignment and lag, and how its offsets are reset here."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from oncelog import errors
from oncelog.client.admin.groups import EARLIEST, INACTIVE, LATEST, PartitionSeek, Target
from oncelog.console import lag_chart
from oncelog.console.formats import address
from oncelog.console.guard import RefusedError
from oncelog.console.model import Actor, Page, View
from oncelog.console.pages.groups import ends_of
from oncelog.console.tables import Column, Row, Table
from oncelog.protocol.errors import ErrorCode
from oncelog.watch.rows import lag_of

MEMBERS = (
    Column("member_id", "Member", "id"),
    Column("group_instance_id", "Instance id", "id"),
    Column("client_id", "Client id", "id"),
    Column("host", "Host", "id"),
    Column("partitions", "Partitions", "list"),
)
OFFSETS = (
    Column("topic", "Topic", "id"),
    Column("partition", "Partition", "number"),
    Column("committed", "Position", "number", "The next offset that the group reads"),
    Column("lso", "LSO", "number", "Last stable offset"),
    Column("hw", "HW", "number", "High watermark"),
    Column("lag_lso", "Lag to LSO", "number", "Offsets that read_committed consumers can still read"),
    Column("lag_hw", "Lag to HW", "number"),
    Column("client_id", "Assigned to", "id"),
    Column("metadata", "Metadata"),
)
SEEKS = (
    Column("topic", "Topic", "id"),
    Column("partition", "Partition", "number"),
    Column("committed", "Now", "number"),
    Column("target", "Then", "number"),
    Column("change", "Change", "number", "Negative: these offsets are read again. Positive: they are skipped"),
)
HISTORY = 240
CRUMBS = [("Groups", "/groups")]


async def load(view: View) -> Page:
    """Load a group. Its state is Dead if it does not exist."""
    name = view.query.get("id", "")
    found = await view.admin.describe_group(name)
    owners = {at: member for member in found.members for at in member.assignment or ()}
    committed = await view.admin.committed(name, require_stable=False)
    wanted = {*committed, *owners}
    ends = await ends_of(view, await view.leaders(wanted))
    rows: list[Row] = []
    for at in sorted(wanted):
        position, end = committed.get(at), ends.get(at)
        here = lag_of({} if position is None else {at: position}, ends)
        rows.append(
            {
                "topic": at[0],
                "partition": at[1],
                "committed": None if position is None else int(position),
                "lso": end and end.last_stable_offset,
                "hw": end and end.high_watermark,
                "lag_lso": here.stable,
                "lag_hw": here.high_watermark,
                "client_id": owners[at].client_id if at in owners else None,
                "metadata": None if position is None else position.metadata or None,
                "_partition": address("topics", *at),
            }
        )
    history: deque[tuple[int, int, int]] = view.memory.setdefault("lags", deque(maxlen=HISTORY))
    lag = lag_of(committed, ends)
    if lag.stable is not None and lag.high_watermark is not None and not lag.uncounted:
        history.append((view.now_ms, lag.stable, lag.high_watermark))
    members = Table("members", "Members", MEMBERS, view.query, main=False, empty="The group has no members.").fill(
        {
            "member_id": member.member_id,
            "group_instance_id": member.group_instance_id,
            "client_id": member.client_id,
            "host": member.host,
            "partitions": None
            if member.assignment is None
            else [f"{topic}-{number}" for topic, number in member.assignment],
        }
        for member in found.members
    )
    offsets = Table("offsets", "Offsets", OFFSETS, view.query, links={"topic": "_partition"})
    offsets.empty = "The group has no committed offset and no assigned partition."
    facts = {
        "group": name,
        "state": found.state,
        "type": found.type,
        "protocol": found.protocol,
        "coordinator": found.coordinator,
        "lag_lso": lag.stable,
        "lag_hw": lag.high_watermark,
        "uncounted": lag.uncounted,
    }
    figures = {"lag": lag_chart.draw(list(history))}
    extra = {"may_reset": found.state in INACTIVE and bool(committed)}
    return Page(name or "(empty id)", "group.html", facts, [offsets.fill(rows), members], figures, extra, CRUMBS)


def _target(choice: str, value: str) -> Target:
    """Return where to set the offsets. Raises RefusedError."""
    if choice == "earliest":
        return EARLIEST
    if choice == "latest":
        return LATEST
    try:
        if choice == "offset":
            return Target(offset=max(0, _within(int(value))))
        if choice == "shift":
            return Target(shift=_within(int(value)))
        if choice == "time":
            return Target(timestamp=max(0, time_of(value)))
    except ValueError:
        raise RefusedError(400, f"{value[:80]!r} is not a value for {choice!r}.") from None
    raise RefusedError(400, "Choose where to set the offsets.")


def time_of(text: str) -> int:
    """Return a time in ms since the epoch, from ISO 8601 (UTC unless it says otherwise) or a number of ms.

    Raises ValueError.
    """
    if text.isdecimal():
        return _within(int(text))
    found = datetime.fromisoformat(text)
    return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)


def _within(number: int) -> int:
    """Return an offset, a distance or a time in ms. Raises ValueError if it does not fit into a request."""
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{number} has more than 64 bits")
    return number


async def load_reset(view: View) -> Page:
    """Load the form for a reset, and what it would do: nothing is changed."""
    name, choice, value = view.query.get("id", ""), view.query.get("to", ""), view.query.get("value", "")
    found = await view.admin.describe_group(name)
    if found.state == "Dead":
        raise errors.error_for(ErrorCode.GROUP_ID_NOT_FOUND, f"group {name!r} does not exist")
    rows: list[Row] = []
    refusal, shown = None, ""
    if found.state not in INACTIVE:
        refusal = f"Group {name!r} has active members (its state is {found.state}); stop them first."
    if choice and not refusal:
        try:
            seeks = await view.admin.seek_group(name, _target(choice, value), dry_run=True)
            shown = _positions_of(seeks)
            rows = [
                {**each._asdict(), "change": None if each.committed is None else each.target - each.committed}
                for each in seeks
            ]
        except RefusedError as error:
            refusal = error.text
        except errors.UsageError as error:
            refusal = str(error)
    table = Table("preview", "What would change", SEEKS, view.query, empty="Nothing would change.").fill(rows)
    facts = {"group": name, "to": choice, "value": value, "refusal": refusal}
    read_again = -sum(min(0, row["change"] or 0) for row in rows)
    skipped = sum(max(0, row["change"] or 0) for row in rows)
    extra = {"live": False, "again": read_again, "skipped": skipped, "shown": shown}
    crumbs = [*CRUMBS, (name, address("group", id=name))]
    return Page(f"Reset {name}", "group_reset.html", facts, [table], extra=extra, crumbs=crumbs)


def _positions_of(seeks: Iterable[PartitionSeek]) -> str:
    """Return a short text that changes if a position of the group does."""
    positions = sorted((each.topic, each.partition, each.committed) for each in seeks)
    return hashlib.sha256(repr(positions).encode()).hexdigest()[:32]


async def reset(actor: Actor, _: Mapping[str, Any], form: Mapping[str, str]) -> str:
    """Set the offsets of a group without members as the form says.

    Raises RefusedError if the group has moved since the question.
    """
    name, target = form.get("id", ""), _target(form.get("to", ""), form.get("value", ""))
    try:
        if _positions_of(await actor.admin.seek_group(name, target, dry_run=True)) != form.get("shown"):
            raise RefusedError(409, f"The group {name!r} has committed offsets since the question was asked.")
        await actor.admin.seek_group(name, target)
    except errors.UsageError as error:
        raise RefusedError(409, str(error)) from error
    return address("group", id=name)

"""`oncelog group log`: print the records of `__consumer_offsets`, in the formats of Kafka's formatters."""

from __future__ import annotations

import json
from collections.abc import Callable

import click

from oncelog.cli.common import connected
from oncelog.cli.internal_records import document, of_known_kind, place, place_text, print_records
from oncelog.cli.partition_tailer import READ_COMMITTED, READ_UNCOMMITTED
from oncelog.coordinator.groups.records import decode_record
from oncelog.protocol.messages.group_metadata_value import GroupMetadataKey
from oncelog.protocol.messages.offset_commit_value import OffsetCommitKey, OffsetCommitValue
from oncelog.protocol.records import Record
from oncelog.protocol.topics import CONSUMER_OFFSETS


def as_offset_metadata(value: OffsetCommitValue) -> str:
    """Format as Kafka 0.9 to 2.0: `[OffsetMetadata[12,NO_METADATA],CommitTime 1,ExpirationTime 2]`."""
    position = f"OffsetMetadata[{value.offset},{value.metadata or 'NO_METADATA'}]"
    return f"[{position},CommitTime {value.commit_timestamp},ExpirationTime {value.expire_timestamp}]"


def as_offset_and_metadata(value: OffsetCommitValue) -> str:
    """Format as Kafka 2.1 to 3.9: `OffsetAndMetadata(offset=12, leaderEpoch=Optional.empty, ...)`."""
    epoch = f"Optional[{value.leader_epoch}]" if value.leader_epoch >= 0 else "Optional.empty"
    expires = f"Some({value.expire_timestamp})" if value.expire_timestamp >= 0 else "None"
    return (
        f"OffsetAndMetadata(offset={value.offset}, leaderEpoch={epoch}, metadata={value.metadata}, "
        f"commitTimestamp={value.commit_timestamp}, expireTimestamp={expires})"
    )


TEXT_FORMS: dict[str, Callable[[OffsetCommitValue], str]] = {
    "offset-metadata": as_offset_metadata,
    "offset-and-metadata": as_offset_and_metadata,
}
FORMS = ("json", *TEXT_FORMS)


@click.command("log")
@click.argument("name", required=False)
@click.option("--groups", is_flag=True, help="Print the generations of groups, with their members, instead of offsets.")
@click.option("--read-committed", is_flag=True, help="Omit the offsets of aborted and open transactions.")
@click.option("-f", "--follow", is_flag=True, help="Continue with new records as they arrive.")
@click.option(
    *("--format", "form"),
    type=click.Choice(FORMS),
    default="json",
    help="json: as Kafka 4 (default). offset-metadata: as Kafka 0.9 to 2.0. offset-and-metadata: as Kafka 2.1 to 3.9.",
)
@click.option("--where", is_flag=True, help="Also print the partition, offset and time of each record.")
@connected
def log(
    name: str | None, groups: bool, read_committed: bool, follow: bool, form: str, where: bool, bootstrap: str
) -> None:
    """Print the records of __consumer_offsets for the group NAME, or for all groups.

    Each record is one line. The records of a partition are in the order of their offsets. Compaction keeps at least
    the last record of each key.

    All records of a group are in one partition, which --where prints. The leader of this partition is the group's
    coordinator.
    """
    if groups and form != "json":
        raise click.UsageError(f"--groups needs --format json, but --format is {form}")
    isolation = READ_COMMITTED if read_committed else READ_UNCOMMITTED

    what = "generation" if groups else "offset"
    print_records(
        bootstrap,
        CONSUMER_OFFSETS,
        name,
        lambda partition, record: shown(partition if where else None, record, form, group=name, groups=groups),
        f"{CONSUMER_OFFSETS} has no {what} of a group {name!r}; `oncelog group list` lists all groups",
        isolation=isolation,
        follow=follow,
    )


def shown(partition: int | None, item: Record, form: str, *, group: str | None, groups: bool) -> str | None:
    """Return the line of a record, or None if it belongs to another group or is of another kind.

    With a `partition`, the line begins with it, and with the offset and time of the record. Without one, it equals that
    of Kafka's formatter. `groups`: show generations instead of offsets, in JSON only.
    """
    record = of_known_kind(item, decode_record)
    if record is None:
        return None
    asked = GroupMetadataKey if groups else OffsetCommitKey
    found = record.key
    if not isinstance(found, asked) or (group is not None and found.group != group):
        return None
    if form == "json":
        at = {} if partition is None else place(partition, item)
        return json.dumps({**at, **document(record)}, ensure_ascii=False)
    assert isinstance(found, OffsetCommitKey)
    assert record.value is None or isinstance(record.value, OffsetCommitValue)
    text = "NULL" if record.value is None else TEXT_FORMS[form](record.value)
    where = "" if partition is None else f"{place_text(CONSUMER_OFFSETS, partition, item)}: "
    return f"{where}[{found.group},{found.topic},{found.partition}]::{text}"

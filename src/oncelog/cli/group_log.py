"""`oncelog group log`: what lies in `__consumer_offsets`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import click

from oncelog import errors
from oncelog.cli.common import connected, open_cluster
from oncelog.cli.group_records import FORMS, shown
from oncelog.cli.reader import READ_COMMITTED, READ_UNCOMMITTED
from oncelog.protocol.topics import CONSUMER_OFFSETS


@click.command("log")
@click.argument("name", required=False)
@click.option("--groups", is_flag=True, help="Generations and their members, instead of offsets.")
@click.option("--read-committed", is_flag=True, help="Leave out offsets of aborted and open transactions.")
@click.option("-f", "--follow", is_flag=True, help="Go on with what is to come.")
@click.option("--format", "form", type=click.Choice(FORMS), default="json", help="As Kafka 4, 0.9, or 2.1 wrote it.")
@connected
def log(name: str | None, groups: bool, read_committed: bool, follow: bool, form: str, bootstrap: str) -> None:
    """Print the records of __consumer_offsets: those of one group, or of all.

    One line a record, oldest first in each partition; compaction leaves at least the last of each key.
    """
    if groups and form != "json":
        raise click.UsageError("--groups is for --format json")
    isolation = READ_COMMITTED if read_committed else READ_UNCOMMITTED

    async def run() -> int:
        lines = 0
        async for key, value in _records(bootstrap, name, isolation, follow):
            line = shown(key, value, form, group=name, groups=groups)
            if line is not None:
                lines += 1
                click.echo(line)
        return lines

    try:
        lines = asyncio.run(run())
    except (KeyboardInterrupt, BrokenPipeError):  # ordinary ends, as of `topic consume`
        return
    if name is not None and not lines:
        what = "generation" if groups else "offset"
        raise click.ClickException(
            f"{CONSUMER_OFFSETS} has no {what} of a group {name!r}; `oncelog group list` shows the groups there are"
        )


async def _records(
    bootstrap: str, name: str | None, isolation: int, follow: bool
) -> AsyncIterator[tuple[bytes, bytes | None]]:
    """Keys and values of the partition that the group lives in, or of all partitions."""
    from oncelog.cli.reader import BEGINNING, Marker, Reader
    from oncelog.coordinator.partitioning import partition_for

    async with open_cluster(bootstrap) as cluster:
        try:
            known = await cluster.topic(CONSUMER_OFFSETS)
        except errors.UnknownTopicError:
            if not follow:
                return  # nobody has committed anything yet
            raise
        count = len(known.partitions)
        numbers = range(count) if name is None else [partition_for(name, count)]
        reader = Reader(cluster, CONSUMER_OFFSETS, numbers, isolation=isolation, markers=False)
        await reader.seek(BEGINNING)
        async for _, item in reader.read(None if follow else await reader.ends()):
            assert not isinstance(item, Marker)
            if item.key is not None:
                yield item.key, item.value

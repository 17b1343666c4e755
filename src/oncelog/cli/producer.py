"""`oncelog producer`: show where producers get their ids."""

from __future__ import annotations

import json
import os

import click

from oncelog.cli.common import formatted, printable, show
from oncelog.cli.data_folder import DEFAULT_DATA
from oncelog.cli.lazy import LazyGroup, examples

producer = LazyGroup(
    "producer",
    help="Show where producers get their ids. `oncelog txn producers` shows the epochs and sequences of a partition's "
    "producers.",
    table={
        "blocks": ("oncelog.cli.producer:blocks", "Show the newest block of producer ids."),
    },
)
COLUMNS = ("owner", "first_id", "last_id", "next_block")


@click.command(epilog=examples("oncelog producer blocks", "oncelog producer blocks --data /srv/oncelog"))
@click.option(
    "--data",
    type=click.Path(file_okay=False),
    help=f"Data directory of `oncelog up`, or first log directory of `oncelog broker`. Default: ./{DEFAULT_DATA}.",
)
@formatted
def blocks(data: str | None, form: str) -> None:
    """Show the newest block of producer ids: the broker that owns it, its first and last id, and the next block.

    A broker reserves 1,000 ids at a time, and assigns them to producers. The metadata has only the newest block. After
    a restart, a broker does not use the rest of its block, so no id is assigned twice.

    The command reads the metadata from the file metadata.sqlite on this machine, while the broker runs or afterwards,
    and writes nothing. It cannot show a block of Apache Kafka. Kafka's controller keeps it in its own log, and no API
    of Kafka's protocol returns it.
    """
    from oncelog.broker.process import METADATA_FILE
    from oncelog.cluster.store import UnavailableError
    from oncelog.cluster.store_reader import read_node
    from oncelog.coordinator.producer_ids import BLOCK_PATH, parse_block

    metadata = os.path.join(os.path.abspath(data or DEFAULT_DATA), METADATA_FILE)
    if not os.path.isfile(metadata):
        raise click.ClickException(f"{metadata} does not exist; name the data directory with --data")
    try:
        node = read_node(metadata, BLOCK_PATH)
    except UnavailableError as error:
        raise click.ClickException(str(error)) from error
    try:
        text = "" if node is None else node.data.decode()
        block = parse_block(text.encode()) if text else None
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise click.ClickException(f"{metadata}: the node {BLOCK_PATH} is damaged: {error}") from error
    if block is None:
        raise click.ClickException(f"{metadata} has no block of producer ids: no broker has reserved one yet")
    row = {"owner": block.broker, "first_id": block.start, "last_id": block.end, "next_block": block.end + 1}
    if form == "json":
        show({**row, "node": BLOCK_PATH, "data": json.loads(text)}, form)
        return
    show([row], form, COLUMNS)
    click.echo(f"\n{BLOCK_PATH}: {printable(text)}")

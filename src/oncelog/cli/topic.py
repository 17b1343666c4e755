"""`oncelog topic`: the commands create, list, describe and delete, and the table of all topic commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from oncelog import errors
from oncelog.cli.common import assignments, confirm, confirmed, connected, existing, formatted, open_admin, show
from oncelog.cli.lazy import LazyGroup, examples

if TYPE_CHECKING:
    from oncelog import Admin
    from oncelog.client.admin.topics import TopicInfo

OF_THE_TOPIC = 1
"""`ConfigSource` of a topic's own settings."""

POSITIVE = click.IntRange(min=1)
BROKERS_DEFAULT = -1
"""The number in CreateTopics that requests the broker's default (KIP-464)."""
PARTITION_COLUMNS = ("partition", "leader", "leader_epoch", "replicas", "isr", "start", "lso", "hw", "leo")
REPLICA_COLUMNS = ("partition", "broker", "role", "in_sync", "hw", "leo")

topic = LazyGroup(
    "topic",
    help="Create, list, describe, alter and delete topics; produce, consume and export.",
    table={
        "create": ("oncelog.cli.topic:create", "Create a topic."),
        "list": ("oncelog.cli.topic:list_topics", "List topics."),
        "describe": ("oncelog.cli.topic:describe", "Show the leaders, replicas and offsets of a topic's partitions."),
        "alter": ("oncelog.cli.alter:topic", "Add partitions to a topic, or change its settings."),
        "delete": ("oncelog.cli.topic:delete", "Delete topics and their data."),
        "delete-records": ("oncelog.cli.alter:delete_records", "Delete a partition's records before an offset."),
        "produce": ("oncelog.cli.produce:produce", "Send each line of stdin, or each row of a file, as a record."),
        "consume": ("oncelog.cli.consume:consume", "Print the records of a topic."),
        "export": ("oncelog.cli.topic_export:export", "Write the records of a topic to files."),
    },
)


@click.command(epilog=examples("oncelog topic create orders -p 6 -c retention.ms=86400000"))
@click.argument("name")
@click.option("-p", "--partitions", type=POSITIVE, help="Number of partitions. Default: the broker's num.partitions.")
@click.option(
    *("-r", "--replication-factor"),
    type=POSITIVE,
    help="Copies of each partition. Default: the broker's default.replication.factor.",
)
@click.option("-c", "--config", "configs", multiple=True, metavar="KEY=VALUE", help="Set a topic setting. Repeatable.")
@click.option("--if-not-exists", is_flag=True, help="Succeed if the topic exists already.")
@connected
@formatted
def create(
    name: str,
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
    bootstrap: str,
    form: str,
) -> None:
    """Create the topic NAME."""
    from oncelog.protocol.errors import ErrorCode

    settings = assignments("--config", configs)
    row: dict[str, Any] = {"name": name, "created": True}
    with open_admin(bootstrap) as admin:
        try:
            (made,) = admin.create_topics(
                name, partitions or BROKERS_DEFAULT, replication_factor or BROKERS_DEFAULT, settings
            )
            row |= {"partitions": made.partitions, "replication_factor": made.replication_factor}
        except errors.KafkaError as error:
            if not if_not_exists or error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
            row["created"] = False
    show([row] if form == "text" else row, form)


@click.command("list")
@click.option("--internal", is_flag=True, help="Include the coordinators' internal topics.")
@connected
@formatted
def list_topics(internal: bool, bootstrap: str, form: str) -> None:
    """List topics."""
    with open_admin(bootstrap) as admin:
        found = admin.topics(internal=internal)
    rows = [
        {
            "name": item.name,
            "partitions": item.partitions,
            "replication_factor": item.replication_factor,
            "internal": item.internal,
        }
        for item in found
    ]
    show(rows, form, ("name", "partitions", "replication_factor"))


@click.command(epilog=examples("oncelog topic describe orders", "oncelog topic describe --under-replicated"))
@click.argument("names", nargs=-1)
@click.option(
    *("--unavailable-partitions", "--unavailable"),
    is_flag=True,
    help="Show only partitions without a leader.",
)
@click.option(
    *("--under-min-isr-partitions", "--under-min-isr"),
    is_flag=True,
    help="Show only partitions with fewer in-sync replicas than min.insync.replicas.",
)
@click.option(
    *("--under-replicated-partitions", "--under-replicated"),
    is_flag=True,
    help="Show only partitions that have a replica which is not in sync.",
)
@click.option(
    "--replicas",
    "with_replicas",
    is_flag=True,
    help="Also show HW and LEO of each replica, as its own broker knows them.",
)
@connected
@formatted
def describe(
    names: tuple[str, ...],
    with_replicas: bool,
    unavailable_partitions: bool,
    under_min_isr_partitions: bool,
    under_replicated_partitions: bool,
    bootstrap: str,
    form: str,
) -> None:
    """Show each partition's leader, replicas, in-sync replicas and offsets. Without NAMES, describe all topics.

    START is the first offset and LEO the log end offset. Consumers with read_committed read up to LSO (the last stable
    offset), other consumers up to HW (the high watermark). LSO, HW and LEO are exclusive: a consumer reads the records
    before them. ELR, if there are any, are the replicas that have left the in-sync ones, but have all committed records
    (KIP-966). A further line names each open transaction that holds back a partition's LSO.

    With --unavailable, --under-min-isr or --under-replicated, list the partitions to which one of them applies, without
    offsets. The list includes internal topics. kafka-topics.sh has the same options.
    """
    from oncelog.cli.holders import sentence

    filters = (unavailable_partitions, under_min_isr_partitions, under_replicated_partitions)
    if any(filters):
        if with_replicas:
            raise click.UsageError("--replicas shows offsets, but the list of partitions with problems has none")
        _list_problems(names, filters, bootstrap, form)
        return
    with open_admin(bootstrap) as admin:
        wanted = names or sorted(admin.list_topics())
        found = [_describe(admin, name, with_replicas) for name in wanted]
    if form == "json":
        show(found, form)
        return
    for index, item in enumerate(found):
        settings = " ".join(f"{key}={value}" for key, value in item["configs"].items())
        click.echo(("\n" if index else "") + f"{item['name']}  id {item['topic_id']}  {settings}".rstrip())
        eligible = ("elr",) if any(row["elr"] for row in item["partitions"]) else ()
        show(item["partitions"], form, PARTITION_COLUMNS + eligible)
        for row in item["partitions"]:
            if row["held_by"] is not None:
                click.echo(sentence(item["name"], row["partition"], row["lso"], row["held_by"]))
        if with_replicas:
            click.echo()
            show([replica for row in item["partitions"] for replica in row["replica_offsets"]], form, REPLICA_COLUMNS)


def _describe(admin: Admin, name: str, with_replicas: bool) -> dict[str, Any]:
    from oncelog.cli.holders import find_holders
    from oncelog.cluster.topics import topic_id_text

    with existing(name):
        (known,) = admin.describe_topics(name)
    holders = find_holders(admin, name, known.partitions)
    replicas = _replica_offsets(admin, known) if with_replicas else None
    return {
        "name": name,
        "topic_id": topic_id_text(known.topic_id),
        "internal": known.internal,
        "configs": {
            item.name: item.value
            for item in admin.describe_config_entries("topic", name)
            if item.source == OF_THE_TOPIC
        },
        "partitions": [
            {
                "partition": item.partition,
                "leader": item.leader,
                "leader_epoch": item.leader_epoch,
                "replicas": list(item.replicas),
                "isr": list(item.isr),
                "elr": list(item.elr),
                "start": _known(item.log_start_offset),
                "lso": _known(item.last_stable_offset),
                "hw": _known(item.high_watermark),
                "leo": _known(item.log_end_offset),
                "held_by": holders.get(item.partition),
                **({} if replicas is None else {"replica_offsets": replicas[item.partition]}),
            }
            for item in known.partitions
        ],
    }


def _replica_offsets(admin: Admin, known: TopicInfo) -> dict[int, list[dict[str, Any]]]:
    """Return the rows of each partition's replicas."""
    rows: dict[int, list[dict[str, Any]]] = {item.partition: [] for item in known.partitions}
    by_number = {item.partition: item for item in known.partitions}
    for each in admin.describe_replica_offsets(known.name):
        partition = by_number.get(each.partition)
        if partition is not None:  # otherwise the topic has just got it
            rows[each.partition].append(
                {
                    "partition": each.partition,
                    "broker": each.broker,
                    "role": "leader" if each.broker == partition.leader else "follower",
                    "in_sync": each.broker in partition.isr,
                    "hw": _known(each.high_watermark),
                    "leo": _known(each.log_end_offset),
                }
            )
    return rows


def _list_problems(names: tuple[str, ...], filters: tuple[bool, ...], bootstrap: str, form: str) -> None:
    """Show the partitions that have one of the problems. `filters` says for each of `PROBLEMS` whether it is one."""
    from oncelog.cli.replication import COLUMNS, PROBLEMS, replication_row

    wanted = {problem for problem, is_wanted in zip(PROBLEMS, filters, strict=True) if is_wanted}
    with open_admin(bootstrap) as admin:
        found = [] if names else admin.describe_replication()
        for name in names:
            with existing(name):
                found += admin.describe_replication(name)
    rows = map(replication_row, found)
    show([row for row in rows if not wanted.isdisjoint(row["problems"])], form, COLUMNS)


def _known(offset: int) -> int | None:
    """Return the offset, or None if it is unknown: the partition has no leader, or a broker does not answer."""
    return None if offset < 0 else offset


@click.command(epilog=examples("oncelog topic delete orders --yes"))
@click.argument("names", nargs=-1, required=True)
@confirmed
@connected
@formatted
def delete(names: tuple[str, ...], yes: bool, bootstrap: str, form: str) -> None:
    """Delete the topics NAMES and their data. If one fails, delete the others nevertheless."""
    several = "topics" if len(set(names)) > 1 else "topic"
    confirm(f"this deletes {several} {', '.join(map(repr, dict.fromkeys(names)))} with all records", yes=yes)
    rows = []
    failure: Exception | None = None
    with open_admin(bootstrap) as admin:
        for name in dict.fromkeys(names):
            try:
                with existing(name):
                    admin.delete_topics(name)
            except (errors.KafkaError, click.ClickException) as error:
                failure = failure or error
            else:
                rows.append({"name": name, "deleted": True})
    if rows or form == "json":
        show(rows, form)
    if failure is not None:
        raise failure

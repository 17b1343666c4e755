"""`oncelog topic`: create, list, describe, alter, delete; `produce` and `consume` have modules of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from oncelog import errors
from oncelog.cli.common import TOPIC_WAIT_MS, check, connected, existing, formatted, open_cluster, show
from oncelog.cli.lazy import LazyGroup
from oncelog.protocol.kinds import ResourceType

if TYPE_CHECKING:
    from oncelog.client.blocking import BlockingCluster

OF_THE_TOPIC = 1
"""`ConfigSource` of a topic's own settings."""

POSITIVE = click.IntRange(min=1)
BROKERS_DEFAULT = -1
"""In CreateTopics: as the broker has it by default (KIP-464)."""

topic = LazyGroup(
    "topic",
    help="Create, list, describe, alter and delete topics; produce and consume.",
    table={
        "create": ("oncelog.cli.topic:create", "Create a topic."),
        "list": ("oncelog.cli.topic:list_topics", "List topics."),
        "describe": ("oncelog.cli.topic:describe", "Show leaders, replicas and offsets of a topic's partitions."),
        "alter": ("oncelog.cli.alter:topic", "Add partitions, change settings."),
        "delete": ("oncelog.cli.topic:delete", "Delete topics and their data."),
        "produce": ("oncelog.cli.produce:produce", "Send lines from stdin."),
        "consume": ("oncelog.cli.consume:consume", "Print records."),
    },
)


@click.command()
@click.argument("name")
@click.option("-p", "--partitions", type=POSITIVE, help="Number of partitions (the broker's num.partitions).")
@click.option("-r", "--replication-factor", type=POSITIVE, help="Copies of each (the broker's default).")
@click.option("-c", "--config", "configs", multiple=True, metavar="KEY=VALUE", help="A setting of the topic.")
@click.option("--if-not-exists", is_flag=True, help="An existing topic is no error.")
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
    """Create a topic."""
    from oncelog.protocol.errors import ErrorCode
    from oncelog.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest

    settings = []
    for text in configs:
        key, equals, value = text.partition("=")
        if not equals:
            raise click.UsageError(f"--config takes KEY=VALUE, not {text!r}")
        settings.append(CreatableTopicConfig(name=key.strip(), value=value.strip()))
    wanted = CreatableTopic(
        name=name,
        num_partitions=partitions or BROKERS_DEFAULT,
        replication_factor=replication_factor or BROKERS_DEFAULT,
        configs=settings,
    )
    with open_cluster(bootstrap) as cluster:
        response = cluster.call_controller(CreateTopicsRequest(topics=[wanted]))
    result = response.topics[0]
    existed = result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    if not (existed and if_not_exists):
        check(result.error_code, result.error_message or f"topic {name!r}")
    row = {"name": name, "created": not existed}
    if not existed:
        row |= {"partitions": result.num_partitions, "replication_factor": result.replication_factor}
    show([row] if form == "text" else row, form)


@click.command("list")
@click.option("--internal", is_flag=True, help="Include the coordinators' own topics.")
@connected
@formatted
def list_topics(internal: bool, bootstrap: str, form: str) -> None:
    """List topics."""
    with open_cluster(bootstrap) as cluster:
        found = cluster.topics(internal=internal)
    rows = [
        {
            "name": name,
            "partitions": len(item.partitions),
            "replication_factor": len(item.partitions[0].replicas) if item.partitions else 0,
            "internal": item.internal,
        }
        for name, item in sorted(found.items())
    ]
    show(rows, form, ("name", "partitions", "replication_factor"))


@click.command()
@click.argument("names", nargs=-1)
@connected
@formatted
def describe(names: tuple[str, ...], bootstrap: str, form: str) -> None:
    """Show each partition's leader, replicas, ISR and offsets.

    START is the first offset, LSO the end for read_committed readers, HW for others, LEO the log's end.
    """
    with open_cluster(bootstrap) as cluster:
        wanted = names or sorted(cluster.topics())
        found = [_describe(cluster, name) for name in wanted]
    if form == "json":
        show(found, form)
        return
    for index, item in enumerate(found):
        settings = " ".join(f"{key}={value}" for key, value in item["configs"].items())
        click.echo(("\n" if index else "") + f"{item['name']}  id {item['topic_id']}  {settings}".rstrip())
        show(item["partitions"], form)


def _describe(cluster: BlockingCluster, name: str) -> dict[str, Any]:
    from oncelog.cli.offsets import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED, TOOL, list_offsets
    from oncelog.cluster.metadata import topic_id_text

    with existing(name):
        known = cluster.topic(name, timeout_ms=TOPIC_WAIT_MS)
    numbers = list(known.partitions)
    start, high, stable, end = cluster.run_many(
        [
            list_offsets(cluster.cluster, name, numbers, EARLIEST),
            list_offsets(cluster.cluster, name, numbers, LATEST),
            list_offsets(cluster.cluster, name, numbers, LATEST, READ_COMMITTED),
            list_offsets(cluster.cluster, name, numbers, LATEST, READ_UNCOMMITTED, TOOL),
        ]
    )
    partitions = [
        {
            "partition": number,
            "leader": item.leader,
            "leader_epoch": item.leader_epoch,
            "replicas": list(item.replicas),
            "isr": list(item.isr),
            "start": start[number],
            "lso": stable[number],
            "hw": high[number],
            "leo": end[number],
        }
        for number, item in known.partitions.items()
    ]
    return {
        "name": name,
        "topic_id": topic_id_text(known.topic_id),
        "internal": known.internal,
        "configs": _own_configs(cluster, name),
        "partitions": partitions,
    }


def _own_configs(cluster: BlockingCluster, name: str) -> dict[str, str | None]:
    from oncelog.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource

    resource = DescribeConfigsResource(resource_type=ResourceType.TOPIC, resource_name=name, configuration_keys=None)
    result = cluster.call_any(DescribeConfigsRequest(resources=[resource])).results[0]
    check(result.error_code, result.error_message or f"settings of topic {name!r}")
    return {item.name: item.value for item in result.configs if item.config_source == OF_THE_TOPIC}


@click.command()
@click.argument("names", nargs=-1, required=True)
@connected
@formatted
def delete(names: tuple[str, ...], bootstrap: str, form: str) -> None:
    """Delete topics and their data."""
    from oncelog.protocol.messages.delete_topics import DeleteTopicsRequest

    with open_cluster(bootstrap) as cluster:
        request = DeleteTopicsRequest(topic_names=list(names), timeout_ms=30_000)
        response = cluster.call_controller(request, 5)
    failed = [item for item in response.responses if item.error_code]
    deleted = [item.name for item in response.responses if not item.error_code]
    rows = [{"name": name, "deleted": True} for name in deleted]
    if rows or form == "json":
        show(rows, form)
    for item in failed:
        message = item.error_message or ""
        with existing(item.name or ""):
            about = message if item.name in message else f"topic {item.name!r}: {message}"
            raise errors.error_for(item.error_code, about)

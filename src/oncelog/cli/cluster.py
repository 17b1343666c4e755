"""`oncelog cluster`: the cluster as a whole."""

from __future__ import annotations

from typing import Any

import click

from oncelog.cli.common import check, connected, formatted, open_cluster, show
from oncelog.cli.lazy import LazyGroup
from oncelog.protocol.kinds import ResourceType

cluster = LazyGroup(
    "cluster",
    help="Describe the cluster, change settings of its brokers.",
    table={
        "describe": ("oncelog.cli.cluster:describe", "Show brokers, controller and features."),
        "alter": ("oncelog.cli.alter:cluster", "Change settings of brokers while they run."),
        "feature": ("oncelog.cli.feature:feature", "Show or change the levels of the cluster's features."),
    },
)


@click.command()
@click.option("--configs", is_flag=True, help="Include each broker's settings.")
@connected
@formatted
def describe(configs: bool, bootstrap: str, form: str) -> None:
    """Show brokers, controller and finalized features."""
    from oncelog.protocol.messages.describe_cluster import DescribeClusterRequest

    with open_cluster(bootstrap) as client:
        response = client.call_any(DescribeClusterRequest())
        check(response.error_code, response.error_message or "describing the cluster")
        brokers: list[dict[str, Any]] = [
            {
                "id": item.broker_id,
                "host": item.host,
                "port": item.port,
                "rack": item.rack,
                "controller": item.broker_id == response.controller_id,
            }
            for item in sorted(response.brokers, key=lambda item: item.broker_id)
        ]
        features = client.features()
        if configs:
            for item in brokers:
                item["configs"] = _configs(client, item["id"])
    if form == "json":
        data = {"cluster_id": response.cluster_id, "controller": response.controller_id, "features": features}
        show({**data, "brokers": brokers}, form)
        return
    click.echo(f"cluster {response.cluster_id}")
    click.echo("features " + " ".join(f"{name}={level}" for name, level in sorted(features.items())))
    show(brokers, form, ("id", "host", "port", "rack", "controller"))
    for item in brokers if configs else ():
        click.echo(f"\nbroker {item['id']}")
        for name, value in item["configs"].items():
            click.echo(f"  {name}={'' if value is None else value}")


def _configs(client: Any, broker: int) -> dict[str, str | None]:
    from oncelog.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource

    resource = DescribeConfigsResource(
        resource_type=ResourceType.BROKER, resource_name=str(broker), configuration_keys=None
    )
    result = client.call_broker(broker, DescribeConfigsRequest(resources=[resource])).results[0]
    check(result.error_code, result.error_message or f"settings of broker {broker}")
    return {item.name: item.value for item in sorted(result.configs, key=lambda item: item.name)}

"""A broker with two listeners: its clients get the address of the listener that they came in on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from oncelog.protocol.messages.describe_cluster import DescribeClusterRequest
from oncelog.protocol.messages.find_coordinator import FindCoordinatorRequest
from oncelog.protocol.messages.metadata import MetadataRequest
from support.clients.aio import AioClient
from support.clients.base import Client, Outgoing
from support.clients.confluent import ConfluentClient
from support.clients.kafka_python import KafkaPythonClient
from support.clients.ours import OurClient
from support.servers import Server
from support.two_listeners import started
from support.wire import Wire, retried

CLIENTS: tuple[Callable[[str], Client], ...] = (ConfluentClient, KafkaPythonClient, AioClient, OurClient)


@pytest.fixture
def own_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Server, str]]:
    """Start a server, and return it with the address of its outer listener."""
    with started(request.param, tmp_path) as found:
        yield found


def test_clients_get_the_address_of_their_listener(own_server: tuple[Server, str], name: str) -> None:
    inner, outer = own_server[0].bootstrap, own_server[1]
    for address in (inner, outer):
        with Wire(address) as wire:
            metadata = wire.call(MetadataRequest(topics=[]))
            assert [f"{broker.host}:{broker.port}" for broker in metadata.brokers] == [address]
            cluster = wire.call(DescribeClusterRequest())
            assert [f"{broker.host}:{broker.port}" for broker in cluster.brokers] == [address]
            for request, version in (
                (FindCoordinatorRequest(coordinator_keys=[name]), 4),
                (FindCoordinatorRequest(key=name), 3),
            ):
                (found,) = retried(
                    lambda: [wire.call(request, version)],  # noqa: B023 - called in this round of the loop
                    lambda found: (found[0].coordinators or found)[0].error_code,
                )
                (coordinator,) = found.coordinators or [found]
                assert f"{coordinator.host}:{coordinator.port}" == address
    OurClient(inner).create_topic(name)
    values = []
    for address in (inner, outer):
        for library in CLIENTS:
            client = library(address)
            values.append(f"{client.name} at {address}".encode())
            client.send(name, [Outgoing(values[-1])])
            assert [seen.value for seen in client.read(name, committed=True)] == values

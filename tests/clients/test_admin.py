"""Requests about the cluster that every client supports."""

from __future__ import annotations

from support.clients.base import Client
from support.processes import wait_until


def test_topics_are_created_and_deleted(client: Client, name: str) -> None:
    client.create_topic(name, 5)
    wait_until(lambda: client.topics().get(name) == 5, "the topic exists")
    client.delete_topic(name)
    wait_until(lambda: name not in client.topics(), "the topic is deleted")
    client.create_topic(name, 2)
    wait_until(lambda: client.topics().get(name) == 2, "the topic exists again")


def test_topic_configs(client: Client, name: str) -> None:
    client.create_topic(name, retention_ms="123456", cleanup_policy="compact")
    wait_until(lambda: name in client.topics(), "the topic exists")
    configs = client.topic_configs(name)
    assert configs["retention.ms"] == "123456"
    assert configs["cleanup.policy"] == "compact"
    assert configs["max.message.bytes"] == "1048588"
    assert configs["compression.type"] == "producer"


def test_cluster(client: Client) -> None:
    assert client.cluster() == (1, {1})

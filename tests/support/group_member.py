"""One member of a group, in Python: python -m support.group_member CLIENT BOOTSTRAP GROUP MEMBER PROTOCOL SUBSCRIPTION.

CLIENT is `oncelog` or `librdkafka`. PROTOCOL is `consumer` (KIP-848) or `classic`. SUBSCRIPTION is a topic, or a
pattern for the broker if it begins with ^. The member commits what it has read after each poll. It prints one line of
JSON for each event (see `support.group_history`), each with a single write, so that members can share one file. On
SIGTERM, it leaves the group and ends. `conformance/go/member.go` and `conformance/java/groups/GroupMember.java` do the
same with other clients.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import confluent_kafka

from oncelog import Consumer, errors
from oncelog.protocol.topics import TopicPartition

POLL_S = 0.1

STRATEGY = {"partition_assignment_strategy": "cooperative-sticky", "heartbeat_interval_ms": 200}
"""Options of a classic member: only cooperative ones can be in a group with members of the consumer protocol."""


class Reporter:
    """Print the events of one member, and keep what it has to commit."""

    def __init__(self, member: str) -> None:
        self._member = member
        self.pending: dict[TopicPartition, int] = {}
        self.stopping = False
        signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, *_: object) -> None:
        self.stopping = True

    def say(self, what: str, **more: Any) -> None:
        line = json.dumps({"member": self._member, "what": what, **more})
        os.write(sys.stdout.fileno(), f"{line}\n".encode())

    def partitions(self, what: str, partitions: Iterable[TopicPartition]) -> None:
        """Report "assigned", "revoked" or "lost". Of partitions that went away, nothing can be committed."""
        given = sorted(partitions)
        if what != "assigned":
            for each in given:
                self.pending.pop(each, None)
        if given:
            self.say(what, partitions=given)

    def read(self, places: Iterable[tuple[str, int, int]]) -> None:
        """Report records: topic, partition and offset of each."""
        found: dict[TopicPartition, list[int]] = defaultdict(list)
        for topic, partition, offset in places:
            found[topic, partition].append(offset)
        for (topic, partition), offsets in found.items():
            self.say("read", topic=topic, partition=partition, offsets=offsets)
            self.pending[topic, partition] = offsets[-1] + 1

    def committed(self) -> None:
        for (topic, partition), offset in self.pending.items():
            self.say("committed", topic=topic, partition=partition, offset=offset)
        self.pending.clear()

    def refused(self, error: Exception) -> None:
        """Report a commit that failed. It is repeated after the next poll."""
        self.say("refused", error=str(error))


def oncelog(report: Reporter, bootstrap: str, group: str, protocol: str, subscription: str) -> None:
    options: dict[str, Any] = STRATEGY if protocol == "classic" else {}
    with Consumer(
        bootstrap, group_id=group, group_protocol=protocol, auto_offset_reset="earliest", **options
    ) as consumer:
        consumer.subscribe(
            subscription if subscription.startswith("^") else [subscription],
            on_assigned=lambda partitions: report.partitions("assigned", partitions),
            on_revoked=lambda partitions: report.partitions("revoked", partitions),
            on_lost=lambda partitions: report.partitions("lost", partitions),
        )
        while not report.stopping:
            report.read((each.topic, each.partition, each.offset) for each in consumer.poll(POLL_S))
            if report.pending:
                try:
                    consumer.commit(dict(report.pending))
                except errors.KafkaError as error:
                    report.refused(error)
                else:
                    report.committed()


def librdkafka(report: Reporter, bootstrap: str, group: str, protocol: str, subscription: str) -> None:
    options = {key.replace("_", "."): value for key, value in STRATEGY.items()} if protocol == "classic" else {}
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "topic.metadata.refresh.interval.ms": 1_000,
            **options,
        }
    )

    def commit() -> None:
        offsets = [confluent_kafka.TopicPartition(*place, offset) for place, offset in report.pending.items()]
        if not offsets:
            return
        try:
            outcomes = consumer.commit(offsets=offsets, asynchronous=False)
            for each in outcomes:
                if each.error is not None:
                    raise confluent_kafka.KafkaException(each.error)
        except confluent_kafka.KafkaException as error:
            report.refused(error)
        else:
            report.committed()

    def told(what: str, partitions: Any) -> None:
        if what == "revoked":
            commit()
        report.partitions(what, [(each.topic, each.partition) for each in partitions])

    consumer.subscribe(
        [subscription],
        on_assign=lambda _, partitions: told("assigned", partitions),
        on_revoke=lambda _, partitions: told("revoked", partitions),
        on_lost=lambda _, partitions: told("lost", partitions),
    )
    while not report.stopping:
        message = consumer.poll(POLL_S)
        while message is not None:  # a poll may also call a listener, so report each record at once
            if message.error() is None:
                report.read([place_of(message)])
            else:
                report.say("error", error=str(message.error()))
            message = consumer.poll(0)
        commit()
    consumer.close()


def place_of(message: confluent_kafka.Message) -> tuple[str, int, int]:
    """Return topic, partition and offset of a record. They are optional only for messages that are errors."""
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    return topic, partition, offset


CLIENTS = {"oncelog": oncelog, "librdkafka": librdkafka}


if __name__ == "__main__":
    client, address, team, who, *rest = sys.argv[1:]
    reporter = Reporter(who)
    CLIENTS[client](reporter, address, team, *rest)
    reporter.say("ended")

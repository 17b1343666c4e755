"""Our consumer with server-side assignors (KIP-848) of Apache Kafka, also with one that is not Kafka's."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncelog import Admin, Consumer, Producer, errors
from oncelog.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from oncelog.protocol.topics import TopicPartition
from support import copying
from support.apache_kafka import ApacheKafka
from support.deleted_topics import drop_and_read_again, start_again_at_new_topic
from support.processes import wait_until
from support.rebalances import MODERN, QUICK, Watched, close_after, members, settle


@pytest.fixture(scope="module")
def apache_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    """Run one whose members send frequent heartbeats. The broker sets the interval, 5 s by default."""
    made = ApacheKafka(
        tmp_path_factory.mktemp("kip-848"),
        settings={
            "group.consumer.heartbeat.interval.ms": "200",
            "group.consumer.min.heartbeat.interval.ms": "100",
            "group.consumer.session.timeout.ms": "3000",
            "group.consumer.min.session.timeout.ms": "1000",
        },
    )
    yield made
    made.stop()


@pytest.fixture
def admin(apache_kafka: ApacheKafka) -> Iterator[Admin]:
    with Admin(apache_kafka.bootstrap) as made:
        yield made


def partitions_of(admin: Admin, topic: str, count: int) -> list[TopicPartition]:
    admin.create_topics(topic, count)
    return [(topic, index) for index in range(count)]


def fill(kafka: ApacheKafka, partitions: list[TopicPartition], each: int = 5) -> None:
    with Producer(kafka.bootstrap) as producer:
        for topic, index in partitions:
            for number in range(each):
                producer.send(topic, b"%d" % number, partition=index)


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_members_share_partitions_and_take_over(
    apache_kafka: ApacheKafka, admin: Admin, name: str, assignor: str
) -> None:
    partitions = partitions_of(admin, name, 4)
    fill(apache_kafka, partitions)
    options = MODERN | {"enable_auto_commit": True, "group_remote_assignor": assignor}
    with members(apache_kafka.bootstrap, name, 2, **options) as group:
        first, second = group
        first.subscribe([name])
        seen = 0
        while seen < 20:
            seen += len(first.consumer.poll(30))
        second.subscribe([name])
        settle(group, partitions)
        assert sorted(first.of("revoked")) == second.consumer.assignment(), "only the revoked partitions are reported"
        assert first.of("assigned") == partitions
        kept = first.consumer.assignment()
        assert first.consumer.positions() == dict.fromkeys(kept, 5)
        assert {tp: second.consumer.position(*tp) for tp in second.consumer.assignment()} == dict.fromkeys(
            second.consumer.assignment(), 5
        ), "committed before the revocation"
        assert first.consumer.group_metadata().generation_id > 0
        first.consumer.close()
        settle([second], partitions)
        fill(apache_kafka, partitions, 1)
        again = 0
        while again < 4:
            again += len(second.consumer.poll(30))
        assert not any(member.of("lost") for member in group)
    assert admin.committed(name) == dict.fromkeys(partitions, 6)


def test_patterns_and_a_changed_subscription(apache_kafka: ApacheKafka, admin: Admin, name: str) -> None:
    one, two = partitions_of(admin, f"{name}-1", 2), partitions_of(admin, f"{name}-2", 2)
    with members(apache_kafka.bootstrap, name, 1, **MODERN) as (member,):
        member.subscribe(f"^{name}")
        settle([member], [*one, *two])
        member.subscribe([f"{name}-2"])
        settle([member], two)
        assert member.of("revoked") == one
        admin.create_partitions(f"{name}-2", 3)
        settle([member], [*two, (f"{name}-2", 2)])


def test_bad_settings_are_reported(apache_kafka: ApacheKafka, admin: Admin, name: str) -> None:
    admin.create_topics(name)
    with Consumer(
        apache_kafka.bootstrap, group_id=name, group_protocol="consumer", group_remote_assignor="by-horoscope"
    ) as consumer:
        consumer.subscribe([name])
        with pytest.raises(errors.RequestError, match="group_remote_assignor") as caught:
            consumer.poll(30)
        assert "uniform" in str(caught.value)
    with Consumer(apache_kafka.bootstrap, group_id=name, group_protocol="consumer") as consumer:
        consumer.subscribe(r"^(?=a)b")
        with pytest.raises(errors.RequestError, match="RE2"):
            consumer.poll(30)


def test_fenced_members_rejoin(apache_kafka: ApacheKafka, admin: Admin, name: str) -> None:
    """A member that does not poll in time leaves, and others get its partitions. It is notified, and rejoins."""
    partitions = partitions_of(admin, name, 2)
    fill(apache_kafka, partitions)
    slow = Watched(apache_kafka.bootstrap, name, max_poll_interval_ms=1_500, **MODERN)
    slow.subscribe([name])
    assert slow.consumer.poll(30)
    with members(apache_kafka.bootstrap, name, 1, **MODERN) as (other,):
        other.subscribe([name])
        settle([other], partitions, "the other member has all partitions")
        stale = slow.consumer.group_metadata()
        with pytest.raises(errors.GroupError):
            slow.consumer.commit()
        wait_until(
            lambda: slow.consumer.poll(0.05) is not None and bool(slow.of("lost")), "the slow member is notified"
        )
        assert slow.of("lost") == partitions
        settle([slow, other], partitions)
        assert slow.consumer.group_metadata().member_id == stale.member_id, "one id for the consumer's life (KIP-1082)"
    slow.consumer.close()


def test_member_closed_during_its_join_leaves(apache_kafka: ApacheKafka, admin: Admin, name: str) -> None:
    partitions_of(admin, name, 1)
    with members(apache_kafka.bootstrap, name, 1, **MODERN) as (other,):
        other.subscribe([name])
        settle([other], [(name, 0)])
        close_after(apache_kafka.bootstrap, name, ConsumerGroupHeartbeatRequest, 1, MODERN)
        assert len(admin.describe_group(name).members) == 1


def test_transactions_carry_the_member_epoch(apache_kafka: ApacheKafka, admin: Admin, name: str) -> None:
    partitions = partitions_of(admin, name, 1)
    fill(apache_kafka, partitions)
    with (
        Producer(apache_kafka.bootstrap, transactional_id=name) as producer,
        Consumer(apache_kafka.bootstrap, group_id=name, isolation_level="read_committed", **MODERN) as consumer,
    ):
        consumer.subscribe([name])
        assert len(consumer.poll(30)) == 5
        with producer.transaction() as transaction:
            transaction.send_offsets(consumer)
        wait_until(lambda: admin.committed(name) == {(name, 0): 5}, "the offsets are committed")
        gone = consumer.group_metadata()
        consumer.unsubscribe()
        producer.begin_transaction()
        producer.send_offsets(gone, {(name, 0): 3})
        with pytest.raises(errors.AbortableError) as caught:
            producer.commit_transaction()
        assert isinstance(caught.value.__cause__, errors.GroupError)
        producer.abort_transaction()


def test_nothing_is_lost_or_duplicated_when_members_die(apache_kafka: ApacheKafka, name: str, tmp_path: Path) -> None:
    options = {"group_protocol": "consumer"}
    copying.run(apache_kafka.bootstrap, name, tmp_path, records=300, deaths=4, options=options)


def test_static_members(apache_kafka: ApacheKafka, admin: Admin, name: str) -> None:
    partitions = partitions_of(admin, name, 4)
    static = MODERN | {"group_instance_id": "restarts"}
    with members(apache_kafka.bootstrap, name, 1, **MODERN) as (other,):
        first = Watched(apache_kafka.bootstrap, name, **static)
        other.subscribe([name])
        first.subscribe([name])
        settle([other, first], partitions)
        mine, calls = first.consumer.assignment(), list(other.calls)
        with members(apache_kafka.bootstrap, name, 1, **static) as (twin,):
            twin.subscribe([name])
            with pytest.raises(errors.FencedMemberError, match="group_instance_id"):
                twin.consumer.poll(30)
        first.consumer.close()
        with members(apache_kafka.bootstrap, name, 1, **static) as (second,):
            second.subscribe([name])
            settle([other, second], partitions)
            assert second.consumer.assignment() == mine
            assert other.calls == calls, "no partition moved"


def test_classic_members_migrate_one_by_one(apache_kafka: ApacheKafka, admin: Admin, name: str) -> None:
    """An online migration: a classic member with a cooperative assignor and a member of the new protocol in one
    group.
    """
    partitions = partitions_of(admin, name, 4)
    classic = QUICK | {"partition_assignment_strategy": "cooperative-sticky", "heartbeat_interval_ms": 200}
    with (
        members(apache_kafka.bootstrap, name, 1, **classic) as (old,),
        members(apache_kafka.bootstrap, name, 1, **MODERN) as (new,),
    ):
        old.subscribe([name])
        settle([old], partitions)
        new.subscribe([name])
        settle([old, new], partitions)
        old.consumer.close()
        settle([new], partitions)


@pytest.mark.parametrize("pattern", [False, True], ids=["names", "pattern"])
def test_member_drops_a_deleted_topic_and_reads_it_when_it_is_made_again(
    apache_kafka: ApacheKafka, admin: Admin, name: str, pattern: bool
) -> None:
    options = MODERN | {"allow_auto_create_topics": False}
    drop_and_read_again(apache_kafka, admin, name, f"^{name}-" if pattern else None, options)


def test_position_of_a_deleted_topic_is_not_used_for_the_topic_of_the_same_name(
    apache_kafka: ApacheKafka, admin: Admin, name: str
) -> None:
    start_again_at_new_topic(apache_kafka, admin, name, MODERN | {"allow_auto_create_topics": False})


@pytest.mark.parametrize(
    ("count", "told"),
    [
        (2, "gives this consumer no partitions before other members have released them"),
        (1, "gives this consumer no partitions, because its other members have all"),
    ],
    ids=["revoked", "kept"],
)
def test_consumer_names_the_members_that_have_its_partitions(
    apache_kafka: ApacheKafka, admin: Admin, name: str, count: int, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The first member does not poll, as one that was killed does not. Before, the second one waited in silence."""
    caplog.set_level(logging.WARNING, "oncelog")
    partitions = partitions_of(admin, name, count)
    fill(apache_kafka, partitions)
    with (
        Consumer(apache_kafka.bootstrap, group_id=name, client_id="silent", **MODERN) as silent,
        Consumer(apache_kafka.bootstrap, group_id=name, client_id="waiting", **MODERN) as waiting,
    ):
        silent.subscribe([name])
        wait_until(lambda: silent.poll(0.2), "the first member reads")
        waiting.subscribe([name])
        wait_until(lambda: waiting.poll(0.2) or "no partitions" in caplog.text, "the warning is logged")
        (warning,) = caplog.messages
        assert warning.startswith(f"group {name!r} {told}: ")
        assert f"{silent.group_metadata().member_id!r} (client 'silent', " in warning
        assert "'waiting'" not in warning, "the consumer itself is not named"
        assert "A member that was killed expires " in warning
        silent.close()
        wait_until(lambda: waiting.poll(0.2), "the second member reads")
        assert "the wait for other members is over" in caplog.text

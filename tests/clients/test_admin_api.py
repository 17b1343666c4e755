"""Our Admin, method by method, against either server. oncelog.aio has the same methods."""

from __future__ import annotations

import asyncio
import inspect
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka.admin import NewTopic

from oncelog import Admin, Consumer, Producer, aio, errors
from oncelog.client.admin.groups import LATEST, Target
from oncelog.client.requests import offsets as offset_calls
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.metadata import MetadataResponse
from oncelog.protocol.records import Record, build_batch
from support.processes import wait_until
from support.servers import Server
from support.wire import Wire

SETTINGS = {"transaction.partition.verification.enable": "false"}
"""Settings of the module's own server. Without the verification of KIP-890, a transaction can hang."""


def code(call: pytest.ExceptionInfo[errors.KafkaError]) -> ErrorCode:
    return call.value.code


def fill(server: Server, topic: str, count: int, partition: int = 0) -> None:
    with Producer(server.bootstrap) as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, partition=partition, timestamp=1000 + number)


# -- the blocking Admin and the one for asyncio -----------------------------------------------------------------


def test_both_admins_have_the_same_calls() -> None:
    def calls(kind: type) -> dict[str, object]:
        found = {name: value for name, value in vars(kind).items() if not name.startswith("_")}
        assert all(value.__doc__ for value in found.values())
        return {name: inspect.signature(value) for name, value in found.items()}

    assert calls(Admin) == calls(aio.Admin)
    assert len(calls(Admin)) > 30


def test_asyncio_admin_returns_the_same(server: Server, name: str) -> None:
    async def go() -> None:
        async with aio.Admin(server.bootstrap) as admin:
            (made,) = await admin.create_topics(name, 2)
            assert (made.name, made.partitions, made.replication_factor) == (name, 2, 1)
            assert (await admin.list_topics())[name] == 2
            assert await admin.describe_log_dirs(partitions=[(name, 1)])
            await admin.delete_topics(name)

    asyncio.run(go())


def test_missing_method_raises_a_helpful_attribute_error(admin: Admin) -> None:
    with pytest.raises(
        AttributeError, match=r"'elect_leaders'; Admin does not support electing leaders \(KIP-460\) yet"
    ):
        admin.elect_leaders()  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="did you mean describe_topics"):
        admin.describe_topic("x")  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"call offsets\(\)") as caught:
        admin.list_offsets({})  # type: ignore[attr-defined]
    assert (caught.value.name, caught.value.obj) == ("list_offsets", admin)


def test_topic_of_another_library_is_an_invalid_name(admin: Admin, name: str) -> None:
    with pytest.raises(errors.UsageError, match="it must be str, not NewTopic"):
        admin.create_topics([NewTopic(name, 1)])


@pytest.mark.parametrize(
    "call",
    [lambda admin: admin.list_groups(), lambda admin: admin.offsets({("t", 0): 0})],
    ids=["list_groups", "offsets"],
)
def test_wrong_port_fails_before_the_call_times_out(
    call: Callable[[Admin], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    from oncelog.client.admin import _shared as admin_face

    monkeypatch.setattr(admin_face, "FIRST_CONTACT_MS", 200)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        asked = threading.Event()

        def ask() -> None:
            with Admin(address) as admin, pytest.raises(errors.ConnectionFailedError, match=address):
                call(admin)
            asked.set()

        threading.Thread(target=ask, daemon=True).start()
        assert asked.wait(30), "the call waited its own 60 s"


# -- topics ----------------------------------------------------------------------------------------------


def test_admin_waits_for_the_metadata_of_a_new_topic(
    server: Server, admin: Admin, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The brokers get the new topic after the controller has answered; on a busy machine seconds later."""
    topology, ignorant = admin.cluster.topology, 3
    update = topology.update

    def late(response: MetadataResponse, **options: bool) -> None:
        nonlocal ignorant
        for topic in response.topics:
            if topic.name in (name, f"{name}-late") and ignorant:
                ignorant -= 1
                topic.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        update(response, **options)

    monkeypatch.setattr(topology, "update", late)
    admin.cluster.missing_topic_ms = 0  # how long to wait for a topic that no broker knows
    (made,) = admin.create_topics(name, 2)
    assert (made.partitions, ignorant) == (2, 0)
    ignorant, admin.cluster.api_timeout_ms = 1_000_000, 100
    with pytest.raises(errors.TimedOutError, match="was created"):
        admin.create_topics(f"{name}-late")


def test_topics_are_created_checked_and_described(admin: Admin, name: str) -> None:
    (checked,) = admin.create_topics(name, 3, validate_only=True)
    assert (checked.partitions, name in admin.list_topics()) == (3, False)
    (made,) = admin.create_topics(name, assignments=[[1], [1]], configs={"retention.ms": "60000"})
    assert (made.partitions, made.replication_factor) == (2, 1)
    (listed,) = [item for item in admin.topics() if item.name == name]
    assert listed == (name, made.topic_id, 2, 1, False)
    with pytest.raises(errors.KafkaError) as existing:
        admin.create_topics([name, f"{name}-beside"])
    assert code(existing) is ErrorCode.TOPIC_ALREADY_EXISTS
    wait_until(lambda: f"{name}-beside" in admin.list_topics(), "the other topic was created nevertheless")
    (found,) = admin.describe_topics(name)
    assert (found.topic_id, [p.partition for p in found.partitions]) == (made.topic_id, [0, 1])
    assert found.partitions[0][1:] == (1, 0, (1,), (1,), 0, 0, 0, 0, ())
    admin.create_partitions(name, 4, validate_only=True)
    admin.create_partitions(name, 3, assignments=[[1]])
    wait_until(lambda: admin.list_topics()[name] == 3, "the new partition is visible")
    with pytest.raises(errors.KafkaError) as fewer:
        admin.create_partitions(name, 1)
    assert code(fewer) is ErrorCode.INVALID_PARTITIONS
    admin.delete_topics([name, f"{name}-beside"])
    wait_until(lambda: name not in admin.list_topics(), "the topic is deleted")
    with pytest.raises(errors.UnknownTopicError):
        admin.delete_topics(name)


def test_described_offsets_are_in_order_while_records_are_written(
    admin: Admin, server: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records arrive after the answer with the log end offset, if a request for another offset has none yet."""
    admin.create_topics(name, 1)
    list_offsets = offset_calls.list_offsets
    begun: list[int] = []
    answered: list[int] = []

    async def answer(*arguments: Any, **options: Any) -> Any:
        if options.get("replica_id") == offset_calls.DEBUGGING:
            begun.append(1)
            found = await list_offsets(*arguments, **options)
            await asyncio.to_thread(fill, server, name, 5)
            answered.append(1)
            return found
        await asyncio.sleep(0)
        while len(begun) > len(answered):
            await asyncio.sleep(0)
        return await list_offsets(*arguments, **options)

    monkeypatch.setattr(offset_calls, "list_offsets", answer)
    (found,) = admin.describe_topics(name)
    start, committed, stable, end = found.partitions[0][5:9]
    assert start <= stable <= committed <= end


def test_offsets_and_deleted_records(admin: Admin, server: Server, name: str) -> None:
    admin.create_topics(name, 2)
    fill(server, name, 5)
    asked = {-2: 0, -1: 5, -3: 4, 1003: 3, 9999: -1}
    assert {when: admin.offsets({(name, 0): when})[name, 0] for when in asked} == asked
    assert admin.delete_records({(name, 0): 2, (name, 1): -1}) == {(name, 0): 2, (name, 1): 0}
    (found,) = admin.describe_topics(name)
    assert (found.partitions[0].log_start_offset, found.partitions[0].log_end_offset) == (2, 5)
    with pytest.raises(errors.OffsetOutOfRangeError):
        admin.delete_records({(name, 0): 6})


def test_client_metrics_subscription(admin: Admin, name: str) -> None:
    def listed() -> list[str]:
        found = admin.list_config_resources("client_metrics")
        assert {each.kind for each in found} <= {"client_metrics"}
        return [each.name for each in found]

    wanted = {"metrics": "org.a", "interval.ms": "1000"}
    admin.alter_configs("client_metrics", name, wanted)
    wait_until(lambda: name in listed(), "the subscription exists")
    assert admin.describe_configs("client_metrics", name, all_=False) == wanted
    assert admin.describe_configs("client_metrics", name) == {**wanted, "match": ""}
    with pytest.raises(errors.KafkaError) as wrong:
        admin.alter_configs("client_metrics", name, {"interval.ms": "1"})
    assert code(wrong) is ErrorCode.INVALID_REQUEST
    admin.alter_configs("client_metrics", name, {}, wanted)
    wait_until(lambda: name not in listed(), "the subscription is gone")


def test_resources_with_settings(admin: Admin, name: str) -> None:
    admin.create_topics(name)
    wait_until(lambda: ("topic", name) in admin.list_config_resources(), "the topic is listed")
    assert {("broker", "1"), ("broker_logger", "1")} <= set(admin.list_config_resources())
    assert admin.list_config_resources("broker") == [("broker", "1")]
    with pytest.raises(errors.ConfigError, match="unknown kind of resources 'user'; the kinds are topic, broker,"):
        admin.list_config_resources("user")


def test_settings(admin: Admin, name: str) -> None:

    def own() -> dict[str, str | None]:
        return {item.name: item.value for item in admin.describe_config_entries("topic", name) if item.source == 1}

    admin.create_topics(name)
    assert own() == {}
    admin.alter_configs("topic", name, {"retention.ms": "5"}, validate_only=True)
    admin.alter_configs("topic", name, {"retention.ms": "5", "flush.ms": "7"})
    wait_until(
        lambda: own() == {"retention.ms": "5", "flush.ms": "7"},
        "both settings are set",
    )
    admin.alter_topic_configs(name, {"flush.ms": "8"}, ["retention.ms"])
    wait_until(lambda: own() == {"flush.ms": "8"}, "one setting is left")
    assert admin.describe_configs("topic", name, all_=False)["flush.ms"] == "8"
    (entry,) = [item for item in admin.describe_config_entries("topic", name) if item.name == "flush.ms"]
    assert (entry.value, entry.source, entry.read_only, entry.sensitive) == ("8", 1, False, False)
    with pytest.raises(errors.KafkaError) as wrong:
        admin.alter_configs("topic", name, {"flush.ms": "x"})
    assert code(wrong) is ErrorCode.INVALID_CONFIG
    assert admin.describe_configs("broker", 1)["node.id"] == "1"
    assert admin.describe_configs("broker_logger", 1)
    for ask in (lambda: admin.describe_configs("broker", 7), lambda: admin.alter_broker_configs(7, {"x": "1"})):
        with pytest.raises(errors.KafkaError, match=r"broker 7 does not exist.* the cluster has: 1") as absent:
            ask()
        assert code(absent) is ErrorCode.BROKER_ID_NOT_REGISTERED


# -- cluster ----------------------------------------------------------------------------------------------


def test_cluster_its_features_and_directories(admin: Admin, server: Server, name: str) -> None:
    found = admin.describe_cluster()
    (broker,) = found.brokers
    assert (f"{broker.host}:{broker.port}", found.controller_id) == (server.bootstrap, 1)
    (feature,) = [item for item in admin.describe_features() if item.name == "transaction.version"]
    assert (feature.supported_min, feature.supported_max, feature.level) == (
        0,
        2,
        found.features["transaction.version"],
    )
    admin.update_features({"transaction.version": 1}, "safe_downgrade", validate_only=True)
    with pytest.raises(errors.KafkaError):
        admin.update_features({"transaction.version": 99})
    admin.create_topics(name)
    wait_until(lambda: admin.describe_log_dirs([1], [(name, 0)])[0].replicas, "Kafka has created its folder")
    (directory,) = admin.describe_log_dirs([1], [(name, 0)])
    assert (directory.broker, directory.online, set(directory.replicas)) == (1, True, {(name, 0)})
    with pytest.raises(errors.KafkaError, match="broker 7 does not exist"):
        admin.describe_log_dirs([7])


# -- groups ----------------------------------------------------------------------------------------------


def test_group_and_its_members(admin: Admin, server: Server, name: str) -> None:
    admin.create_topics(name, 2)
    assert admin.describe_group(name).state == "Dead"
    options = {"group_id": name, "group_instance_id": f"{name}-i", "session_timeout_ms": 10_000}
    with Consumer(server.bootstrap, auto_offset_reset="earliest", **options) as consumer:
        consumer.subscribe([name])
        wait_until(
            lambda: consumer.poll(0.1) is not None and len(consumer.assignment()) == 2, "the member has both partitions"
        )
        found = admin.describe_group(name)
        (member,) = found.members
        assert (found.state, found.type, found.coordinator) == ("Stable", "Classic", 1)
        assert (member.group_instance_id, member.assignment) == (f"{name}-i", [(name, 0), (name, 1)])
        assert name in {item.group_id for item in admin.list_groups(["stable"], ["classic"])}
        assert name not in {item.group_id for item in admin.list_groups(["Empty"])}
        with pytest.raises(errors.UsageError, match="Stable"):
            admin.seek_group(name, LATEST)
        with pytest.raises(errors.KafkaError) as stranger:
            admin.remove_members(name, ["stranger"])
        assert code(stranger) is ErrorCode.UNKNOWN_MEMBER_ID
    assert admin.remove_members(name, all_=True) == [f"{name}-i"]  # a static member stays in the group when it closes
    wait_until(lambda: admin.describe_group(name).state == "Empty", "the group has no members")
    assert admin.remove_members(name, all_=True) == []
    for wrong in ({"states": ["Stabel"]}, {"types": ["Klassik"]}):
        with pytest.raises(errors.ConfigError, match=r"did you mean (Stable|Classic)\?"):
            admin.list_groups(**wrong)


def test_offsets_of_a_group(admin: Admin, server: Server, name: str) -> None:
    admin.create_topics(name, 2)
    fill(server, name, 5)
    assert admin.committed(name) == {}
    admin.set_offsets(name, {(name, 0): 2, (name, 1): 0})
    assert admin.committed(name, require_stable=False) == {(name, 0): 2, (name, 1): 0}
    (step,) = admin.seek_group(name, Target(shift=1), [(name, 0)], dry_run=True)
    assert (step, admin.committed(name)[name, 0]) == ((name, 0, 2, 3), 2)
    admin.seek_group(name, Target(offset=99), [(name, 0)])
    assert admin.committed(name)[name, 0] == 5
    admin.delete_offsets(name, [(name, 1)])
    assert admin.committed(name) == {(name, 0): 5}
    admin.delete_groups(name)
    assert admin.committed(name) == {}
    with pytest.raises(errors.KafkaError) as gone:
        admin.delete_groups(name)
    assert code(gone) is ErrorCode.GROUP_ID_NOT_FOUND


# -- transactions ----------------------------------------------------------------------------------------------


def test_transactions_are_listed_described_and_terminated(admin: Admin, server: Server, name: str) -> None:
    admin.create_topics(name)
    with pytest.raises(errors.KafkaError, match=f"transactional id '{name}' does not exist") as missing:
        admin.terminate_transaction(name)
    assert code(missing) is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    with Producer(server.bootstrap, transactional_id=name) as producer:
        producer.begin_transaction()
        producer.send(name, b"open", partition=0)
        producer.flush()
        (listed,) = admin.list_transactions(["Ongoing"], pattern=f"{name[:-1]}.")
        assert (listed.transactional_id, listed.state, listed.coordinator) == (name, "Ongoing", 1)
        assert admin.list_transactions(producer_ids=[listed.producer_id]) == [listed]
        assert admin.list_transactions(longer_than_ms=3_600_000, pattern=name) == []
        found = admin.describe_transaction(name)
        assert (found.partitions, found.timeout_ms, found.producer_id) == ([(name, 0)], 60_000, listed.producer_id)
        (info,) = admin.describe_producers(name, 0)
        assert info == admin.describe_producers(name, 0, broker=1)[0]
        assert (info.producer_id, info.transaction_start) == (listed.producer_id, 0)
        assert admin.find_hanging_transactions(name, older_than_ms=-1) == []
        admin.terminate_transaction(name)
        wait_until(
            lambda: admin.describe_transaction(name).state in ("CompleteAbort", "Empty"), "the transaction was aborted"
        )
        with pytest.raises(errors.KafkaError):
            producer.commit_transaction()
    assert admin.offsets({(name, 0): -1}, committed_only=True) == {(name, 0): 2}
    with pytest.raises(errors.ConfigError, match="unknown transaction state 'Bogus'"):
        admin.list_transactions(["Bogus"])
    with pytest.raises(errors.KafkaError, match="is not a regular expression") as pattern:
        admin.list_transactions(pattern="(")
    assert code(pattern) is ErrorCode.INVALID_REGULAR_EXPRESSION


def test_producers_are_fenced(admin: Admin, server: Server, name: str) -> None:
    fenced = admin.fence_producers([f"{name}-a", f"{name}-b"])
    assert set(fenced) == {f"{name}-a", f"{name}-b"}
    (again,) = admin.fence_producers(f"{name}-a").values()
    assert (again[0], again[1] > fenced[f"{name}-a"][1]) == (fenced[f"{name}-a"][0], True)


def test_hanging_transaction_is_found_and_aborted(module_server: Server, name: str) -> None:
    """The producer writes without the verification of KIP-890, and never adds the partition at its coordinator."""
    with Wire(module_server.bootstrap) as wire, Admin(module_server.bootstrap) as admin:
        wire.create_topic(name, 1)
        who = wire.session(name)
        records = [Record(0, 1_600_000_000_000, None, b"x")]
        identity = {"producer_id": who.producer_id, "producer_epoch": who.epoch, "base_sequence": 0}
        batch = build_batch(records, transactional=True, **identity)
        assert not wire.produce(name, batch, transactional_id=name, version=11).error_code
        (found,) = admin.find_hanging_transactions(name)
        assert (found.topic, found.partition, found.producer.transaction_start) == (name, 0, 0)
        assert admin.find_hanging_transactions(broker=1) == [found]
        assert admin.find_hanging_transactions(name, older_than_ms=10**12) == []
        producer = found.producer
        numbers = {"producer_epoch": producer.producer_epoch, "coordinator_epoch": producer.coordinator_epoch}
        admin.abort_transaction(name, 0, producer_id=producer.producer_id, **numbers)
        assert admin.offsets({(name, 0): -1}, committed_only=True) == {(name, 0): 2}
        assert admin.find_hanging_transactions(name) == []

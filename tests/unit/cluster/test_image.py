"""The metadata image, the difference of two images, and the log of changes that leads from one to the next."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from msgspec import structs

from oncelog.cluster import configs, image_nodes
from oncelog.cluster.brokers import (
    CONTROLLER,
    BrokerInfo,
    Endpoint,
    broker_path,
    encode_broker,
    encode_controller,
)
from oncelog.cluster.changes import KEPT, PATH, ChangeLog
from oncelog.cluster.features import initialize
from oncelog.cluster.image import MetadataImage, difference
from oncelog.cluster.image_nodes import prepare, read_changes, read_image
from oncelog.cluster.partition_state import PartitionState, encode_state, state_path
from oncelog.cluster.state_writes import state_write, write_states
from oncelog.cluster.store import BadVersionError, MetadataStore, NoNodeError, Set
from oncelog.cluster.topic_nodes import add_partitions, erase_topic, write_topic
from oncelog.cluster.topics import PartitionInfo, TopicInfo, topic_id_path
from support.failing_store import FailingStore, Once

LED = PartitionInfo((1,), PartitionState(1, 0, (1,)))


def topic(name: str, number: int = 1, partitions: int = 1, **settings: str) -> TopicInfo:
    return TopicInfo(name, UUID(int=number), (LED,) * partitions, {k.replace("_", "."): v for k, v in settings.items()})


def new_store() -> FailingStore:
    store = FailingStore()
    prepare(store)
    initialize(store, {"transaction.version": 2})
    return store


def test_image_with_other_topics_leaves_the_first_one_unchanged() -> None:
    first = MetadataImage().with_topics({"a": topic("a", 1), "b": topic("b", 2)})
    second = first.with_topics({"a": None, "c": topic("c", 3)})
    assert [each.name for each in first.topics()] == ["a", "b"]
    assert [each.name for each in second.topics()] == ["b", "c"]
    assert second.topic_by_id(UUID(int=1)) is None
    assert first.topic_by_id(UUID(int=1)) == topic("a", 1)


def test_names_with_the_same_metric_name_collide() -> None:
    image = MetadataImage().with_topics({"a.b": topic("a.b")})
    assert image.colliding("a_b") == "a.b"
    assert image.colliding("a.b") is image.colliding("ab") is None
    again = image.with_topics({"a.b": topic("a.b", 2)})
    assert again.colliding("a_b") == "a.b"
    assert again.with_topics({"a.b": None}).colliding("a_b") is None


def test_collision_is_found_without_a_scan_of_all_names() -> None:
    folds = []

    class Name(str):
        def replace(self, *arguments: Any) -> str:
            folds.append(self)
            return super().replace(*arguments)

    names = [Name(f"name.{index}") for index in range(100)]
    image = MetadataImage().with_topics({name: topic(name, index) for index, name in enumerate(names)})
    before = len(folds)
    assert image.colliding("name_7") == "name.7"
    assert image.colliding("name.7") is image.colliding("other") is None
    image.with_topics({names[7]: None})
    assert len(folds) == before + 1


def test_recreated_topic_is_both_deleted_and_created() -> None:
    before = MetadataImage().with_topics({"a": topic("a", 1), "b": topic("b", 2), "c": topic("c", 3)})
    after = before.with_topics({"a": topic("a", 4), "b": topic("b", 2, retention_ms="1")})
    for names in (None, {"a", "b"}):
        delta = difference(before, after, names)
        assert delta.deleted_topics == (topic("a", 1),)
        assert delta.created_topics == (topic("a", 4),)
        assert delta.changed_topics == (topic("b", 2, retention_ms="1"),)
        assert not delta.broker_configs_changed(1)


def test_each_change_of_a_topic_is_in_the_next_delta() -> None:
    store = new_store()
    log, image = ChangeLog(store), read_image(store)
    seen = []
    for change in (
        lambda: write_topic(log, topic("t")),
        lambda: add_partitions(log, topic("t"), [LED]),
        lambda: configs.update_topic(log, "t", lambda _: {"retention.ms": "5"}),
        lambda: erase_topic(log, topic("t", partitions=2)),
    ):
        change()
        delta = read_changes(store, image)
        assert delta is not None
        seen.append((delta.created_topics, delta.changed_topics, delta.deleted_topics))
        image = delta.after
        assert image == read_image(store)
    last = topic("t", partitions=2, retention_ms="5")
    assert seen == [
        ((topic("t"),), (), ()),
        ((), (topic("t", partitions=2),), ()),
        ((), (last,), ()),
        ((), (), (last,)),
    ]
    assert read_changes(store, image) is None


def test_changed_topics_are_read_in_order_of_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a simulated world, each read takes time. If their order depended on hashes, the digest would, too."""
    store = new_store()
    image, log = read_image(store), ChangeLog(store)
    names = [f"t{number:02}" for number in range(20)]
    for number, name in enumerate(names):
        write_topic(log, topic(name, number))
    read: list[str] = []
    read_topic = image_nodes.read_topic
    monkeypatch.setattr(image_nodes, "read_topic", lambda store, name: read.append(name) or read_topic(store, name))
    assert read_changes(store, image) is not None
    assert read == names


def test_settings_of_brokers_are_in_the_next_delta() -> None:
    store = new_store()
    image = read_image(store)
    configs.update_broker(ChangeLog(store), None, lambda _: {"max.connections": "7"})
    configs.update_broker(ChangeLog(store), 3, lambda _: {"max.connections": "8"})
    delta = read_changes(store, image)
    assert delta is not None
    assert delta.broker_configs_changed(1)
    assert delta.after.broker_configs == {None: {"max.connections": "7"}, 3: {"max.connections": "8"}}


def test_settings_of_another_broker_leave_a_broker_unchanged() -> None:
    store = new_store()
    image = read_image(store)
    configs.update_broker(ChangeLog(store), 3, lambda _: {"max.connections": "8"})
    delta = read_changes(store, image)
    assert delta is not None
    assert [delta.broker_configs_changed(broker) for broker in (1, 3)] == [False, True]


@pytest.mark.parametrize("changes", [KEPT, KEPT + 1])
def test_reader_that_missed_too_many_changes_reads_everything(changes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    store = new_store()
    image, log = read_image(store), ChangeLog(store)
    for number in range(changes):
        write_topic(log, topic(f"t{number}", number))
    read: list[MetadataStore] = []
    everything = image_nodes.read_image
    monkeypatch.setattr(image_nodes, "read_image", lambda store: read.append(store) or everything(store))
    delta = read_changes(store, image)
    assert delta is not None
    assert len(delta.created_topics) == changes
    assert bool(read) is (changes > KEPT)


def test_concurrent_writers_both_log_their_changes() -> None:
    store = new_store()
    image = read_image(store)
    store.before = Once(lambda: write_topic(ChangeLog(store), topic("first", 1)))
    write_topic(ChangeLog(store), topic("second", 2))
    delta = read_changes(store, image)
    assert delta is not None
    assert delta.created_topics == (topic("first", 1), topic("second", 2))


def test_version_conflict_of_the_changed_node_is_not_retried() -> None:
    store = new_store()
    store.create("/node")
    with pytest.raises(BadVersionError):
        ChangeLog(store).write([Set("/node", b"", 5)], "/node")
    assert store.get(PATH).data == b""


def test_topic_deleted_during_the_read_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    store = new_store()
    image = read_image(store)
    write_topic(ChangeLog(store), topic("t", partitions=2))
    store.before_get = Once(
        lambda: erase_topic(ChangeLog(store), topic("t", partitions=2)),
        "/brokers/topics/t/partitions/1/state".__eq__,
    )
    delta = read_changes(store, image)
    assert delta is not None
    assert delta.created_topics == ()
    assert read_changes(store, replace(delta.after)) is not None


def test_undecodable_nodes_do_not_block_other_changes(caplog: pytest.LogCaptureFixture) -> None:
    store = new_store()
    log = ChangeLog(store)
    write_topic(log, topic("t"))
    image = read_image(store)
    store.create("/config/brokers/controller-1", b"{}")
    log.write([Set("/brokers/topics/t", b"no JSON")], "/brokers/topics/t", "/config/brokers/controller-1")
    write_topic(log, topic("u", 2))
    delta = read_changes(store, image)
    assert delta is not None
    assert [each.name for each in delta.after.topics()] == ["t", "u"]
    assert "cannot read the metadata of topic t" in caplog.text
    assert "cannot read the settings of broker controller-1" in caplog.text


def test_topic_without_its_settings_is_an_error_and_no_endless_loop() -> None:
    store = new_store()
    write_topic(ChangeLog(store), topic("t"))
    store.delete("/config/topics/t")
    with pytest.raises(NoNodeError) as caught:
        read_image(store)
    assert caught.value.path == "/config/topics/t"


def test_topic_recreated_during_the_read_is_read_again() -> None:
    def create_again() -> None:
        erase_topic(ChangeLog(store), topic("t", 1, partitions=2))
        write_topic(ChangeLog(store), topic("t", 2, partitions=2, retention_ms="5"))

    store = new_store()
    image = read_image(store)
    write_topic(ChangeLog(store), topic("t", 1, partitions=2))
    store.before_get = Once(create_again, "/brokers/topics/t/partitions/1/state".__eq__)
    delta = read_changes(store, image)
    assert delta is not None
    assert delta.created_topics == (topic("t", 2, partitions=2, retention_ms="5"),)


def test_change_of_settings_reads_no_partitions() -> None:
    store = new_store()
    log = ChangeLog(store)
    write_topic(log, topic("t", partitions=3))
    image = read_image(store)
    configs.update_topic(log, "t", lambda _: {"retention.ms": "5"})
    add_partitions(log, topic("t", partitions=3), [LED])
    read: list[str] = []
    store.before_get = read.append
    delta = read_changes(store, image)
    assert delta is not None
    assert delta.changed_topics == (topic("t", partitions=4, retention_ms="5"),)
    assert [path for path in read if path.endswith("/state")] == ["/brokers/topics/t/partitions/3/state"]


def test_change_of_one_state_reads_only_that_node_and_the_topic_id() -> None:
    store = new_store()
    log = ChangeLog(store)
    write_topic(log, topic("t", partitions=3))
    image = read_image(store)
    path = state_path("t", 1)
    log.write([Set(path, encode_state(PartitionState(2, 7, (2, 1), 0, 5)), 0)], path)
    read: list[str] = []
    store.before_get = read.append
    delta = read_changes(store, image, brokers=False)
    assert delta is not None
    (changed,) = delta.changed_topics
    assert changed.partitions == (LED, PartitionInfo((1,), PartitionState(2, 7, (2, 1), 1, 5)), LED)
    assert read == [PATH, path, topic_id_path(UUID(int=1))]
    assert not delta.brokers_changed


def test_state_of_another_topic_of_the_name_is_not_mixed_with_the_old_one() -> None:
    def create_again() -> None:
        erase_topic(ChangeLog(store), topic("t"))
        write_topic(ChangeLog(store), topic("t", 2))

    store = new_store()
    log = ChangeLog(store)
    write_topic(log, topic("t"))
    image = read_image(store)
    path = state_path("t", 0)
    store.before_get = Once(create_again, path.__eq__)
    log.write([], path)
    delta = read_changes(store, image)
    assert delta is not None
    assert delta.created_topics == (topic("t", 2),)


def test_brokers_and_controller_are_in_the_next_delta() -> None:
    store = new_store()
    image = read_image(store)
    assert (image.brokers, image.controller) == ({}, -1)
    session = store.open_session("broker-3", 1000)
    info = BrokerInfo(7, {"PLAINTEXT": Endpoint("localhost", 9092)}, rack="r")
    store.create(broker_path(3), encode_broker(info), session=session)
    store.create(CONTROLLER, encode_controller(3), session=session)
    delta = read_changes(store, image)
    assert delta is not None
    assert delta.brokers_changed
    assert (delta.after.brokers, delta.after.controller) == ({3: info}, 3)
    assert read_changes(store, delta.after) is None
    stopping = replace(info, shutting_down=True)
    ChangeLog(store).write([Set(broker_path(3), encode_broker(stopping))], broker_path(3))
    second = read_changes(store, delta.after, brokers=False)
    assert second is not None
    assert second.after.brokers == {3: stopping}
    store.close_session(session)
    third = read_changes(store, second.after)
    assert third is not None
    assert (third.after.brokers, third.after.controller) == ({}, -1)


def test_undecodable_registration_does_not_hide_other_brokers(caplog: pytest.LogCaptureFixture) -> None:
    store = new_store()
    store.create(broker_path(1), b"{}")
    store.create(broker_path(2), encode_broker(BrokerInfo(0)))
    assert read_image(store).brokers == {2: BrokerInfo(0)}
    assert "cannot read the registration of broker 1" in caplog.text


def test_change_of_many_partitions_leaves_few_changes_in_the_log() -> None:
    store = new_store()
    log = ChangeLog(store)
    for number in range(10):
        log.write([], *(state_path("t", index) for index in range(1000 if number < 9 else 10_000)))
        newest = log.since(number)
        assert newest.paths is not None
        assert log.since(max(number - 3, 0)).paths is None or number < 9
        assert len(store.get(PATH).data) < (200_000 if number < 9 else 500_000)


def test_election_of_many_partitions_is_read_without_reading_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    store = new_store()
    large = topic("t", partitions=10_000)
    write_topic(ChangeLog(store), large)
    image = read_image(store)
    writes = [
        state_write("t", large.topic_id, index, structs.replace(LED.state, leader_epoch=1)) for index in range(10_000)
    ]
    assert all(error is None for _, error in write_states(ChangeLog(store), writes, session=None))
    monkeypatch.setattr(image_nodes, "read_image", lambda _: pytest.fail("the whole tree was read"))
    delta = read_changes(store, image)
    assert delta is not None
    (changed,) = delta.changed_topics
    assert {info.leader_epoch for info in changed.partitions} == {1}
    assert len(store.get(PATH).data) < 70_000


def test_delta_names_the_partitions_that_differ() -> None:
    three = topic("t", partitions=3)
    moved = replace(LED, state=structs.replace(LED.state, leader_epoch=1))
    before = MetadataImage().with_topics({"t": three, "u": topic("u", 2), "v": topic("v", 3, partitions=2)})
    after = before.with_topics(
        {
            "t": replace(three, partitions=(replace(LED), moved, LED, LED)),
            "u": topic("u", 2, retention_ms="1"),
            "v": topic("v", 4, partitions=2),
        }
    )
    delta = difference(before, after)
    assert {name: list(found) for name, found in delta.changed_partitions.items()} == {
        "t": [1, 3],
        "u": [],
        "v": [0, 1],
    }
    assert [found.name for found in delta.changed_topics if delta.settings_changed(found)] == ["u"]

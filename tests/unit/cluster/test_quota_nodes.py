"""Quotas in the versioned tree, beside the SCRAM credentials of users."""

from __future__ import annotations

import logging
from itertools import product

import pytest

from oncelog.cluster import configs, features, quota_nodes
from oncelog.cluster.changes import ChangeLog
from oncelog.cluster.image import MetadataImage
from oncelog.cluster.image_nodes import prepare, read_changes, read_image
from oncelog.cluster.quotas import CONNECTIONS, CONSUMER, DEFAULT, PRODUCER, QuotaEntity
from oncelog.cluster.store import UnavailableError
from oncelog.cluster.store_memory import MemoryStore
from oncelog.cluster.users import update_user, user_path
from oncelog.protocol.errors import ErrorCode, ProtocolError
from support.failing_store import FailingStore, Once, fail

NAMES = (None, DEFAULT, "a", "<default>", "a/b%c ☃", "clients", "..")
ENTITIES = [
    *(QuotaEntity(user, client_id) for user, client_id in product(NAMES, NAMES) if (user, client_id) != (None, None)),
    *(QuotaEntity(ip=ip) for ip in (DEFAULT, "127.0.0.1", "::1")),
]


NO_UTF_8 = configs.encode({PRODUCER: "5"}).replace(b"5", b"\xb5")
"""One bit is wrong."""


def new_store(store: MemoryStore | None = None) -> MemoryStore:
    made = store or MemoryStore(lambda: 0)
    prepare(made)
    features.initialize(made, {})
    return made


def followed(store: MemoryStore, image: MetadataImage) -> MetadataImage:
    """Return the next image, which must be that of a broker that starts now."""
    delta = read_changes(store, image)
    assert delta is not None
    assert delta.after == read_image(store)
    return delta.after


def legal(entity: QuotaEntity, value: float = 5.0) -> dict[str, float | None]:
    return {PRODUCER if entity.ip is None else CONNECTIONS: value}


def removed(entity: QuotaEntity) -> dict[str, float | None]:
    return dict.fromkeys(legal(entity))


@pytest.mark.parametrize("entity", ENTITIES, ids=str)
def test_path_belongs_to_one_entity(entity: QuotaEntity) -> None:
    assert quota_nodes.entity_at(quota_nodes.path_of(entity)) == entity


def test_paths_are_those_of_kafka() -> None:
    paths = [quota_nodes.path_of(each) for each in ENTITIES]
    assert len(set(paths)) == len(ENTITIES)
    wanted = ("users/a", "users/<default>", "clients/a", "users/a/clients/<default>", "ips/127.0.0.1", "ips/<default>")
    assert {f"/config/{each}" for each in wanted} <= set(paths)


def test_each_change_is_in_the_next_image() -> None:
    store = new_store()
    log = ChangeLog(store)
    image = read_image(store)
    for number, entity in enumerate(ENTITIES, 1):
        quota_nodes.update(log, {entity: legal(entity, number)})
        image = followed(store, image)
        assert image.quotas.by_entity[entity] == legal(entity, number)
    assert len(image.quotas) == len(ENTITIES)
    for entity in reversed(ENTITIES):
        quota_nodes.update(log, {entity: removed(entity)})
        image = followed(store, image)
        assert entity not in image.quotas.by_entity


def test_many_entities_change_together() -> None:
    store = new_store()
    log = ChangeLog(store)
    image = read_image(store)
    quota_nodes.update(log, {entity: legal(entity) for entity in ENTITIES})
    image = followed(store, image)
    assert len(image.quotas) == len(ENTITIES)
    many = {QuotaEntity(f"user {number}"): legal(QuotaEntity()) for number in range(quota_nodes.MOST_NAMED + 1)}
    quota_nodes.update(log, many)
    image = followed(store, image)
    assert len(image.quotas) == len(ENTITIES) + len(many)
    quota_nodes.update(log, {entity: removed(entity) for entity in ENTITIES})
    assert followed(store, image).quotas.by_entity.keys() == many.keys()


def test_user_is_removed_while_a_client_of_the_user_is_added() -> None:
    store = new_store()
    log = ChangeLog(store)
    user, client = QuotaEntity("u"), QuotaEntity("u", "c")
    quota_nodes.update(log, {user: legal(user)})
    quota_nodes.update(log, {user: removed(user), client: legal(client)})
    assert read_image(store).quotas.by_entity == {client: {PRODUCER: 5.0}}
    quota_nodes.update(log, {client: removed(client), user: legal(user)})
    assert read_image(store).quotas.by_entity == {user: {PRODUCER: 5.0}}


@pytest.mark.parametrize("client_id", [None, "c"])
def test_credentials_and_quotas_of_a_user_are_changed_alone(client_id: str | None) -> None:
    store = new_store()
    log = ChangeLog(store)
    entity = QuotaEntity("alice", client_id)
    update_user(log, "alice", {"SCRAM-SHA-256": "secret"})
    image = read_image(store)
    quota_nodes.update(log, {entity: {PRODUCER: 5.0, CONSUMER: 2.5e6}})
    image = followed(store, image)
    assert image.user_configs == {"alice": {"SCRAM-SHA-256": "secret"}}
    assert image.quotas.by_entity == {entity: {PRODUCER: 5.0, CONSUMER: 2.5e6}}
    update_user(log, "alice", {"SCRAM-SHA-256": None})
    image = followed(store, image)
    assert (image.user_configs, len(image.quotas)) == ({}, 1)
    update_user(log, "alice", {"SCRAM-SHA-512": "other"})
    quota_nodes.update(log, {entity: {PRODUCER: None, CONSUMER: None}})
    image = followed(store, image)
    assert (image.user_configs, len(image.quotas)) == ({"alice": {"SCRAM-SHA-512": "other"}}, 0)
    update_user(log, "alice", {"SCRAM-SHA-512": None})
    assert read_image(store).user_configs == {}


def test_change_of_nothing_writes_nothing() -> None:
    store = new_store()
    log = ChangeLog(store)
    entity = QuotaEntity("u")
    quota_nodes.update(log, {entity: legal(entity)})
    image = read_image(store)
    quota_nodes.update(log, {entity: legal(entity), QuotaEntity("other"): {PRODUCER: None}})
    assert read_changes(store, image) is None


def test_invalid_settings_are_logged_and_ignored(caplog: pytest.LogCaptureFixture) -> None:
    store = new_store()
    settings = {PRODUCER: "5", CONSUMER: "-1", CONNECTIONS: "1", "request_percentage": "nan", "other": "x"}
    store.create(user_path("a"), configs.encode(settings))
    store.create(user_path("b"), b"{")
    store.create(user_path("c"), NO_UTF_8)
    store.create("/config/ips/no-address", configs.encode({CONNECTIONS: "1"}))
    with caplog.at_level(logging.ERROR):
        assert read_image(store).quotas.by_entity == {QuotaEntity("a"): {PRODUCER: 5.0}}
    assert sum("ignoring the setting" in line for line in caplog.messages) == 4
    assert sum("cannot read the quotas" in line for line in caplog.messages) == 3


@pytest.mark.parametrize("damaged", [b"{", NO_UTF_8])
def test_damaged_node_is_repaired_by_the_next_change(damaged: bytes) -> None:
    store = new_store()
    changes = ChangeLog(store)
    for name in "abc":
        store.create(user_path(name), damaged)
    user = QuotaEntity("a")
    quota_nodes.update(changes, {user: legal(user)})
    update_user(changes, "b", {"SCRAM-SHA-256": "secret"})
    quota_nodes.update(changes, {QuotaEntity("c"): removed(QuotaEntity("c"))})
    image = read_image(store)
    assert image.quotas.by_entity == {user: legal(user)}
    assert image.user_configs == {"b": {"SCRAM-SHA-256": "secret"}}
    assert not store.exists(user_path("c"))


def test_faster_writer_is_not_overwritten() -> None:
    store = FailingStore()
    new_store(store)
    user = QuotaEntity("u")

    def other() -> None:
        update_user(ChangeLog(store), "u", {"SCRAM-SHA-256": "secret"})
        quota_nodes.update(ChangeLog(store), {QuotaEntity("u", "c"): {PRODUCER: 6.0}})

    store.before = Once(other)
    quota_nodes.update(ChangeLog(store), {user: {PRODUCER: 5.0}, QuotaEntity("u", "d"): {PRODUCER: 7.0}})
    image = read_image(store)
    assert {entity.client_id: values[PRODUCER] for entity, values in image.quotas.by_entity.items()} == {
        None: 5.0,
        "c": 6.0,
        "d": 7.0,
    }
    assert image.user_configs == {"u": {"SCRAM-SHA-256": "secret"}}


def test_store_that_fails_changes_nothing() -> None:
    store = FailingStore()
    new_store(store)
    store.before = Once(fail(UnavailableError("no")))
    with pytest.raises(ProtocolError, match="cannot write the quotas") as refused:
        quota_nodes.update(ChangeLog(store), {QuotaEntity("u"): {PRODUCER: 5.0}})
    assert refused.value.code is ErrorCode.REQUEST_TIMED_OUT
    assert len(read_image(store).quotas) == 0

"""ACLs in the versioned tree: all or nothing, and read again by those who follow the tree."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest

from oncelog.cluster import acl_nodes, features
from oncelog.cluster.acls import Acl, Decision, names_of_host
from oncelog.cluster.changes import PATH, ChangeLog
from oncelog.cluster.image import MetadataImage
from oncelog.cluster.image_nodes import prepare, read_changes, read_image
from oncelog.cluster.store import Create, Node, NoNodeError, Set, UnavailableError
from oncelog.cluster.store_memory import MemoryStore
from oncelog.protocol.errors import ErrorCode, ProtocolError
from support.failing_store import FailingStore, Once, fail


def acl(number: int, name: str = "t") -> Acl:
    return Acl(2, name, 3, f"User:{number}", "*", 3, 3)


def named(*acls: Acl) -> dict[str, Acl]:
    return {acl_nodes.node_name(each): each for each in acls}


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


def test_each_change_is_in_the_next_image() -> None:
    store = new_store()
    log = ChangeLog(store)
    image = read_image(store)
    odd = acl(3, "a/b//c\u2603 *")
    acl_nodes.create(log, named(acl(1), acl(2), odd))
    image = followed(store, image)
    assert set(image.acls) == {acl(1), acl(2), odd}
    acl_nodes.delete(log, named(acl(2)))
    assert set(followed(store, image).acls) == {acl(1), odd}


def test_existing_and_missing_acls_are_left() -> None:
    store = new_store()
    log = ChangeLog(store)
    acl_nodes.create(log, named(acl(1)))
    acl_nodes.create(log, named(acl(1), acl(2)))
    acl_nodes.delete(log, named(acl(3), acl(2)))
    before = store.get(PATH)
    acl_nodes.create(log, named(acl(1)))
    acl_nodes.delete(log, named(acl(2)))
    assert store.get(PATH) == before, "nothing to change, so nothing is written"
    assert acl_nodes.read_all(store) == named(acl(1))


def test_change_of_many_acls_logs_one_path() -> None:
    store = new_store()
    log = ChangeLog(store)
    image = read_image(store)
    many = named(*(acl(number) for number in range(acl_nodes.MOST_NAMED + 1)))
    acl_nodes.create(log, many)
    assert log.since(image.sequence).paths == {acl_nodes.ACLS}
    image = followed(store, image)
    assert len(image.acls) == len(many)
    few = dict(list(many.items())[: acl_nodes.MOST_NAMED])
    acl_nodes.delete(log, few)
    assert len(log.since(image.sequence).paths or ()) == acl_nodes.MOST_NAMED
    assert len(followed(store, image).acls) == 1


def test_change_of_many_acls_reads_only_new_and_damaged_nodes() -> None:
    class Counting(MemoryStore):
        read = 0

        def get_many(self, paths: Sequence[str]) -> list[Node | None]:
            self.read += sum(path.startswith(f"{acl_nodes.ACLS}/") for path in paths)
            return super().get_many(paths)

    counting = Counting(lambda: 0)
    store, log = new_store(counting), ChangeLog(counting)
    kept = named(*(acl(number) for number in range(acl_nodes.MOST_NAMED)))
    damaged, lost = named(acl(-1)), named(acl(-2))
    acl_nodes.create(log, {**kept, **damaged, **lost})
    for name in (*damaged, *lost):
        overwrite(store, name, b"damaged")
    image = read_image(store)
    assert image.acls.unreadable == {*damaged, *lost}
    overwrite(store, *damaged, encoded(acl(-1)))
    store.delete(f"{acl_nodes.ACLS}/{next(iter(lost))}")
    gone = dict(list(kept.items())[:10])
    acl_nodes.delete(log, gone)
    many = named(*(acl(number, "new") for number in range(acl_nodes.MOST_NAMED + 1)))
    acl_nodes.create(log, many)
    counting.read = 0
    delta = read_changes(store, image)
    assert delta is not None
    assert counting.read == len(many) + len(damaged)
    assert delta.after.acls == read_image(store).acls
    assert delta.after.acls.by_node == {
        **{name: each for name, each in kept.items() if name not in gone},
        **damaged,
        **many,
    }
    assert not delta.after.acls.unreadable


def test_other_writer_may_create_an_acl_first() -> None:
    store = FailingStore()
    new_store(store)
    log = ChangeLog(store)

    def other() -> None:
        acl_nodes.create(ChangeLog(store), named(acl(2)))

    store.before = Once(other)
    acl_nodes.create(log, named(acl(1), acl(2)))
    assert acl_nodes.read_all(store) == named(acl(1), acl(2))


def test_store_that_cannot_be_written_changes_nothing() -> None:
    store = FailingStore()
    new_store(store)
    store.before = Once(fail(UnavailableError("no")))
    with pytest.raises(ProtocolError, match="cannot write the ACLs") as refused:
        acl_nodes.create(ChangeLog(store), named(acl(1), acl(2)))
    assert refused.value.code is ErrorCode.REQUEST_TIMED_OUT
    assert acl_nodes.read_all(store) == {}


def test_deleted_parent_is_an_error_and_no_loop() -> None:
    store = new_store()
    store.delete(acl_nodes.ACLS)
    with pytest.raises(ProtocolError, match="cannot write the ACLs"):
        acl_nodes.create(ChangeLog(store), named(acl(1)))
    with pytest.raises(NoNodeError):
        acl_nodes.read_all(store)


def overwrite(store: MemoryStore, name: str, data: bytes) -> None:
    path = f"{acl_nodes.ACLS}/{name}"
    log = ChangeLog(store)
    log.write([Set(path, data) if store.exists(path) else Create(path, data)], path)


def decisions(image: MetadataImage, principal: str = "User:1") -> tuple[Decision, bool]:
    """Return the decisions about one topic and about some topic."""
    return image.acls.decide(principal, "10.0.0.1", 3, 2, "t"), image.acls.allows_some(principal, "10.0.0.1", 3, 2)


def encoded(each: Acl) -> bytes:
    store = new_store()
    acl_nodes.create(ChangeLog(store), named(each))
    return store.get(f"{acl_nodes.ACLS}/{acl_nodes.node_name(each)}").data


ONE = acl_nodes.node_name(acl(1))
DAMAGED = {
    "no JSON": (ONE, b"{"),
    "empty": (ONE, b""),
    "no UTF-8": (ONE, b"\xff\xfe"),
    "one wrong bit in a text": (ONE, encoded(acl(1)).replace(b"User", b"Use\xf2")),
    "missing field": (ONE, b'{"resource": 2}'),
    "another ACL": (ONE, encoded(acl(2))),
    "denial that allows": (ONE, encoded(acl(1)).replace(b'"permission":3', b'"permission":2')),
    "negative operation": (ONE, encoded(acl(1)).replace(b'"operation":3', b'"operation":-1')),
    "newer version": (ONE, encoded(acl(1)).replace(b'"version":1', b'"version":2')),
    "node of another name": ("unknown", encoded(acl(1))),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_node_denies_everything_until_it_is_repaired(damage: str, caplog: pytest.LogCaptureFixture) -> None:
    name, data = DAMAGED[damage]
    store = new_store()
    log = ChangeLog(store)
    acl_nodes.create(log, named(acl(1)))
    image = read_image(store)
    assert decisions(image) == (Decision.ALLOWED, True)
    with caplog.at_level(logging.ERROR):
        overwrite(store, name, data)
        image = followed(store, image)
    assert f"cannot read the ACL in /kafka-acl/{name}: " in caplog.text
    assert decisions(image) == decisions(image, "User:2") == (Decision.DENIED, False)
    assert image.acls.unreadable == {name}
    acl_nodes.create(log, named(acl(3)))
    image = followed(store, image)
    assert decisions(image) == (Decision.DENIED, False), "another ACL repairs nothing"
    if name == ONE:
        acl_nodes.create(log, named(acl(1)))
    else:
        acl_nodes.delete(log, [name])
    image = followed(store, image)
    assert decisions(image) == (Decision.ALLOWED, True)
    assert not image.acls.unreadable


def test_other_writer_may_repair_a_node_first() -> None:
    store = FailingStore()
    new_store(store)
    overwrite(store, ONE, b"{")
    store.before = Once(lambda: overwrite(store, ONE, encoded(acl(1))))
    acl_nodes.create(ChangeLog(store), named(acl(1), acl(2)))
    assert acl_nodes.read_all(store) == named(acl(1), acl(2))


@pytest.mark.parametrize(
    ("host", "names"),
    [
        ("10.0.0.1", ("10.0.0.1", "*")),
        ("::1", ("0:0:0:0:0:0:0:1", "::1", "*")),
        ("fe80::1%eth0", ("fe80:0:0:0:0:0:0:1%eth0", "fe80::1%eth0", "*")),
        ("::ffff:10.0.0.1", ("10.0.0.1", "*")),
        ("", ("", "*")),
    ],
)
def test_addresses_have_the_forms_of_java_and_the_short_one(host: str, names: tuple[str, ...]) -> None:
    assert names_of_host(host) == names

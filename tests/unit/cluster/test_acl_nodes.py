"""ACLs in the versioned tree: all or nothing, and read again by those who follow the tree."""

from __future__ import annotations

import logging

import pytest

from oncelog.cluster import acl_nodes, features
from oncelog.cluster.acls import Acl, names_of_host
from oncelog.cluster.changes import PATH, ChangeLog
from oncelog.cluster.image import MetadataImage
from oncelog.cluster.image_nodes import prepare, read_changes, read_image
from oncelog.cluster.store import NoNodeError, UnavailableError
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


def test_damaged_acl_is_logged_and_omitted(caplog: pytest.LogCaptureFixture) -> None:
    store = new_store()
    acl_nodes.create(ChangeLog(store), named(acl(1)))
    store.create(f"{acl_nodes.ACLS}/damaged", b"{")
    with caplog.at_level(logging.ERROR):
        assert acl_nodes.read_all(store) == named(acl(1))
    assert "cannot read the ACL in /kafka-acl/damaged" in caplog.text


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

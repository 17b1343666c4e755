"""The secret of a cluster's logins: it is made once, and a damaged one is replaced."""

from __future__ import annotations

import pytest

from oncelog.cluster.image_nodes import prepare
from oncelog.cluster.login_secret import PATH, SECRET_BYTES, login_secret
from oncelog.cluster.store import MetadataStore
from oncelog.cluster.store_memory import MemoryStore

FIRST, SECOND = b"1" * SECRET_BYTES, b"2" * SECRET_BYTES


@pytest.fixture
def store() -> MetadataStore:
    made = MemoryStore(lambda: 0)
    prepare(made)
    return made


def test_first_proposal_is_kept(store: MetadataStore) -> None:
    assert login_secret(store, FIRST) == FIRST
    assert login_secret(store, SECOND) == FIRST


def test_brokers_that_start_together_get_the_same_secret(store: MetadataStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(path: str) -> bool:
        monkeypatch.undo()
        login_secret(store, FIRST)  # another broker is faster
        return False

    monkeypatch.setattr(store, "exists", missing)
    assert login_secret(store, SECOND) == FIRST


@pytest.mark.parametrize("damaged", [b"", b"short", FIRST + b"1"])
def test_damaged_secret_is_replaced(store: MetadataStore, damaged: bytes) -> None:
    store.create(PATH, damaged)
    assert login_secret(store, FIRST) == FIRST
    assert login_secret(store, SECOND) == FIRST

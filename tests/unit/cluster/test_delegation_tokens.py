"""Delegation tokens in the tree: the format of Kafka's nodes, and nodes that cannot be used."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from oncelog.cluster import delegation_tokens, features
from oncelog.cluster.changes import ChangeLog
from oncelog.cluster.delegation_tokens import DelegationToken
from oncelog.cluster.image_nodes import prepare, read_changes, read_image
from oncelog.cluster.store_memory import MemoryStore

TOKEN = DelegationToken("abc-_9", "User:CN=a,O=ü b", "User:root", ("User:x", "User:y:z"), 1000, 9000, 5000)
PATH = "/delegation_token/tokens/abc-_9"


@pytest.fixture
def log() -> ChangeLog:
    store = MemoryStore(lambda: 0)
    prepare(store)
    features.initialize(store, {})
    return ChangeLog(store)


def test_node_has_the_format_of_kafka(log: ChangeLog) -> None:
    delegation_tokens.create(log, TOKEN)
    assert json.loads(log.store.get(PATH).data) == {
        "version": 3,
        "tokenId": "abc-_9",
        "owner": "User%3ACN%3Da%2CO%3D%C3%BC%20b",
        "tokenRequester": "User%3Aroot",
        "renewers": ["User%3Ax", "User%3Ay%3Az"],
        "issueTimestamp": 1000,
        "maxTimestamp": 9000,
        "expiryTimestamp": 5000,
    }
    assert delegation_tokens.read_all(log.store) == {"abc-_9": TOKEN}


def test_image_follows_the_changes(log: ChangeLog) -> None:
    before = read_image(log.store)
    delegation_tokens.create(log, TOKEN)
    created = read_changes(log.store, before)
    assert created is not None
    assert created.after.tokens == {"abc-_9": TOKEN}
    later = replace(TOKEN, expires_ms=6000)
    assert delegation_tokens.change(log, "abc-_9", lambda token: later) == TOKEN
    changed = read_changes(log.store, created.after)
    assert changed is not None
    assert changed.after.tokens == {"abc-_9": later}
    assert delegation_tokens.change(log, "abc-_9", lambda token: None) == later
    assert delegation_tokens.change(log, "abc-_9", lambda token: None) is None
    removed = read_changes(log.store, changed.after)
    assert removed is not None
    assert removed.after.tokens == {}


def test_former_versions_have_no_requester(log: ChangeLog) -> None:
    node = {
        "version": 1, "tokenId": "old", "owner": "User%3Aa", "renewers": [],
        "issueTimestamp": 1, "maxTimestamp": 3, "expiryTimestamp": 2,
    }  # fmt: skip
    log.store.create("/delegation_token/tokens/old", json.dumps(node).encode())
    assert delegation_tokens.read_all(log.store) == {
        "old": DelegationToken("old", "User:a", "User:a", (), issued_ms=1, max_ms=3, expires_ms=2)
    }


@pytest.mark.parametrize(
    "changed",
    [
        {"tokenId": "other"},
        {"version": 4},
        {"owner": "Group%3Aa"},
        {"owner": "User%3A"},
        {"owner": "a"},
        {"owner": "User%3A%FF"},
        {"renewers": ["x"]},
        {"expiryTimestamp": "soon"},
        {"maxTimestamp": 2**80},
    ],
)
def test_unusable_node_is_omitted(log: ChangeLog, caplog: pytest.LogCaptureFixture, changed: dict[str, object]) -> None:
    delegation_tokens.create(log, TOKEN)
    node = log.store.get(PATH)
    log.store.set(PATH, json.dumps({**json.loads(node.data), **changed}).encode(), node.version)
    assert delegation_tokens.read_all(log.store) == {}
    assert f"cannot read the delegation token in {PATH}" in caplog.text

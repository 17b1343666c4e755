"""What notebooks show: small escaped tables, without secrets, and without a request."""

from __future__ import annotations

import copy
import json
import pickle
import re
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from oncelog import Admin, Consumer, Producer, aio
from oncelog.client.admin import (
    acls,
    configs,
    features,
    groups,
    log_dirs,
    producer_batches,
    quotas,
    replica_offsets,
    replication,
    tokens,
    topics,
    transactions,
    users,
)
from oncelog.client.admin.group_descriptions import GroupDescription, GroupInfo, MemberInfo
from oncelog.client.group_offsets import GroupMetadata, OffsetAndMetadata
from oncelog.client.metrics import results
from oncelog.client.notebooks import MOST_CHARACTERS, MOST_ROWS, Rows, RowsByKey, for_notebooks
from oncelog.client.producer.delivery import RecordMetadata
from oncelog.client.types import ConsumerRecord
from oncelog.testing import Broker

MODULES = (
    *(acls, configs, features, groups, log_dirs, producer_batches, quotas, replica_offsets, replication, tokens),
    *(topics, transactions, users, results),
)


class Tables(HTMLParser):
    """The tables of an HTML text, as lists of lists of cells. Fails at any other element or attribute."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.captions: list[str] = []
        self.tables: list[list[list[str]]] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        assert tag in ("table", "caption", "thead", "tbody", "tr", "th", "td"), tag
        assert attributes == []
        self._open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("th", "td"):
            self.tables[-1][-1].append("")
        elif tag == "caption":
            self.captions.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1] == "caption":
            self.captions[-1] += data
        else:
            self.tables[-1][-1][-1] += data


def shown(value: Any) -> Tables:
    return Tables(value._repr_html_())


def test_record_has_a_row_for_each_field_and_a_table_for_each_list() -> None:
    info = topics.TopicInfo("orders", UUID(int=1), False, [topics.PartitionInfo(0, 1, 0, (1, 2), (1,), 0, 9, 7, 9)])
    found = shown(info)
    assert found.captions == ["TopicInfo", "partitions"]
    first, partitions = found.tables
    assert first == [["name", "orders"], ["topic_id", f"{UUID(int=1)!r}"], ["internal", "False"]]
    assert partitions[0][:5] == ["partition", "leader", "leader_epoch", "replicas", "isr"]
    assert partitions[1] == ["0", "1", "0", "1, 2", "1", "0", "9", "7", "9", ""]


def test_list_of_records_has_a_column_for_each_field() -> None:
    found = shown(
        Rows([GroupInfo("a", "consumer", "Stable", "Classic", 1), GroupInfo("b", "", "Empty", "Consumer", 2)])
    )
    assert found.captions == ["GroupInfo"]
    assert found.tables == [
        [
            ["group_id", "protocol_type", "state", "type", "coordinator"],
            ["a", "consumer", "Stable", "Classic", "1"],
            ["b", "", "Empty", "Consumer", "2"],
        ]
    ]
    assert shown(Rows(["x", 1])).tables == [[["value"], ["x"], ["1"]]]
    assert shown(Rows([])).tables == [[["value"]]]


def test_dict_has_a_row_for_each_key() -> None:
    found = shown(RowsByKey({("orders", 0): OffsetAndMetadata(7, 2, "note"), ("orders", 1): OffsetAndMetadata(0)}))
    assert found.tables == [[["key", "value"], ["orders-0", "7"], ["orders-1", "0"]]]
    sizes = shown(RowsByKey({("t", 0): log_dirs.ReplicaSize(10, 0)}))
    assert sizes.tables == [[["key", "size_bytes", "offset_lag"], ["t-0", "10", "0"]]]
    assert shown(RowsByKey()).tables == [[["key", "value"]]]


def test_members_and_nested_records_are_counted_in_cells() -> None:
    member = MemberInfo("m", None, "c", "/127.0.0.1", [("t", 0), ("t", 1)])
    (_, members) = shown(GroupDescription("g", "Stable", "consumer", "range", [member])).tables
    assert members[1] == ["m", "None", "c", "/127.0.0.1", "t-0, t-1", "-1", "None", ""]
    directory = log_dirs.LogDir(1, "/d", True, 1, 1, {("t", each): log_dirs.ReplicaSize(1, 0) for each in range(9)})
    assert shown(Rows([directory])).tables[0][1][-1] == "9 items"


def test_everything_is_escaped() -> None:
    evil = "<script>alert('1')</script>&\x1b[31m\u202e"
    for value in (
        ConsumerRecord(evil, 0, 1, 2, evil.encode(), evil, ((evil, evil.encode()),)),
        Rows([evil]),
        RowsByKey({evil: evil}),
        Rows([{evil: [evil]}]),
    ):
        html = value._repr_html_()
        assert "<script" not in html
        assert "\x1b" not in html
        assert "\u202e" not in html
        assert "alert(" in "".join("".join(map("".join, table)) for table in Tables(html).tables)


def test_size_is_bounded() -> None:
    big = ConsumerRecord("t", 0, 0, 0, None, bytes(10_000_000), ())
    text = ConsumerRecord("t", 0, 0, 0, None, "é" * 10_000_000, ())
    number = ConsumerRecord("t", 0, 0, 0, 10**100_000, {1: [10**100_000], 2: {3: bytes(10_000_000)}}, ())
    rows = Rows([big, text, number] * 10_000)
    html = rows._repr_html_()
    assert len(html) < MOST_ROWS * 10 * 4 * MOST_CHARACTERS
    assert shown(rows).captions == [f"ConsumerRecord: {MOST_ROWS} of 30,000 rows"]
    assert len(shown(rows).tables[0]) == MOST_ROWS + 1
    assert len(RowsByKey((f"{number}" * 500, number) for number in range(10_000))._repr_html_()) < 100_000
    cells = shown(text).tables[0]
    assert ["value", "é" * MOST_CHARACTERS + "…"] in cells


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"tea", "tea"),
        ("né".encode(), "né"),
        (b"\xff\x00", r"b'\xff\x00'"),
        (("é" * 150).encode(), "é" * 100),
        (None, "None"),
        (0.1 + 0.2, "0.3"),
        (True, "True"),
        ("a\nb", r"a\nb"),
    ],
)
def test_values(value: object, text: str) -> None:
    assert shown(Rows([value])).tables[0][1][0].removesuffix("…") == text


def test_value_with_a_broken_repr_is_shown() -> None:
    class Broken:
        def __repr__(self) -> str:
            raise ValueError("no")

    assert re.fullmatch(r"<Broken instance at 0x\w+>", shown(Rows([Broken()])).tables[0][1][0])


def test_secrets_are_hidden() -> None:
    token = tokens.DelegationToken("id", "SECRET", "User:a", "User:a", (), 1, 2, 3)
    change = users.UserScramCredentialUpsertion("a", "SECRET", salt=b"SECRET")
    for value in (token, change, Rows([token]), Rows([change]), Rows([token, change]), RowsByKey({"a": token})):
        assert "SECRET" not in value._repr_html_()
    assert ["token_id", "id"] in shown(token).tables[0]


def test_every_public_result_shows_itself() -> None:
    kinds = [
        each
        for module in MODULES
        for name, each in vars(module).items()
        if isinstance(each, type)
        and each.__module__ == module.__name__
        and (hasattr(each, "_fields") or hasattr(each, "__dataclass_fields__"))
        and not name.startswith("_")
    ]
    kinds += [ConsumerRecord, RecordMetadata, GroupMetadata]
    without = {kind.__name__ for kind in kinds if not hasattr(kind, "_repr_html_")}
    assert without == {"MetricName", "Target"}, "a name of a metric and an argument"


def test_rows_are_lists_and_dicts() -> None:
    rows, by_key = for_notebooks([1, 2]), for_notebooks({"a": 1})
    assert (type(rows), type(by_key)) == (Rows, RowsByKey)
    assert (rows, by_key) == ([1, 2], {"a": 1})
    assert (repr(rows), repr(by_key)) == ("[1, 2]", "{'a': 1}")
    assert json.dumps([rows, by_key]) == '[[1, 2], {"a": 1}]'
    for value in (rows, by_key):
        assert pickle.loads(pickle.dumps(value)) == copy.deepcopy(value) == value
        assert for_notebooks(value) is value
    assert for_notebooks((1,)) == (1,)


def test_classes_of_others_are_shown_by_their_repr() -> None:
    class Point(NamedTuple):
        x: int

    @dataclass
    class Other:
        y: int

    assert shown(Rows([Point(1), Point(2)])).tables == [[["x"], ["1"], ["2"]]]
    assert shown(Rows([Point(1), Other(2)])).tables[0][1] == ["Point(x=1)"]


def test_clients_and_their_results_show_themselves() -> None:
    with Broker(topics=["orders"]) as broker:
        address = broker.bootstrap_servers
        with Producer(address) as producer, Admin(address) as admin:
            sent = producer.send("orders", b"tea", key=b"anna").result()
            assert ["topic", "orders"] in shown(sent).tables[0]
            with Consumer(address, auto_offset_reset="earliest") as consumer:
                consumer.assign([("orders", 0)])
                records = consumer.poll(30)
                assert shown(records).tables[0][1][:6] == ["orders", "0", "0", str(records[0].timestamp), "anna", "tea"]
                assert shown(consumer).captions[0] == "Consumer"
            before = admin.metrics().request_total
            found = [admin.topics(), admin.describe_topics("orders"), admin.describe_cluster(), admin.list_groups()]
            found += [
                admin.list_topics(),
                admin.describe_configs("topic", "orders"),
                admin.end_offsets([("orders", 0)]),
            ]
            after = admin.metrics().request_total
            assert after > before
            assert all(shown(each).tables for each in [*found, admin, producer, producer.metrics()])
            assert ["orders", "1"] in shown(admin.list_topics()).tables[0]
            assert admin.metrics().request_total == after + 1, "only list_topics() has sent a request"
        closed = dict(row[:2] for row in shown(producer).tables[0])
        assert closed["record_send_total"] == "1"


def test_client_that_has_not_started_says_so() -> None:
    for made in (aio.Producer("localhost:1"), aio.Consumer("localhost:1")):
        assert "is not started" in made._repr_html_()

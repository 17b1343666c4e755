"""`assert_exactly_once`: which records it finds, in a bounded memory."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence

import pytest

from oncelog import Admin, Consumer, Producer
from oncelog.errors import UnknownTopicError
from oncelog.testing import Broker, assert_exactly_once, exactly_once
from support.processes import wait_until


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"auto.create.topics.enable": False}) as running:
        yield running


@pytest.fixture(scope="module")
def bootstrap_servers(broker: Broker) -> str:
    return broker.bootstrap_servers


Fill = Callable[[Sequence[str], Sequence[str]], tuple[str, str]]


@pytest.fixture
def fill(broker: Broker, new_topic: Callable[..., str]) -> Fill:
    """Return a function that creates an input and an output with these values, and returns the topics' names."""

    def create(inputs: Sequence[str], outputs: Sequence[str]) -> tuple[str, str]:
        topics = new_topic(2), new_topic(2)
        with Producer(broker.bootstrap_servers) as producer:
            for topic, values in zip(topics, (inputs, outputs), strict=True):
                for index, value in enumerate(values):
                    producer.send(topic, value, partition=index % 2)
        return topics

    return create


def failure(broker: Broker, topics: tuple[str, str]) -> str:
    """Return the message of the assertion, with the names of the topics replaced."""
    with pytest.raises(AssertionError) as caught:
        assert_exactly_once(*topics, bootstrap_servers=broker.bootstrap_servers)
    return str(caught.value).replace(topics[0], "words").replace(topics[1], "copies")


def test_equal_topics_pass_in_any_order(broker: Broker, fill: Fill) -> None:
    words = [str(index) for index in range(100)]
    topics = fill([*words, "7"], ["7", *reversed(words)])
    assert_exactly_once(*topics, bootstrap_servers=broker.bootstrap_servers)
    assert_exactly_once(*fill([], []), bootstrap_servers=broker.bootstrap_servers)


def test_message_names_lost_duplicated_and_unexpected_records(broker: Broker, fill: Fill) -> None:
    assert failure(broker, fill(["a", "b", "c", "c"], ["b", "b", "b", "c", "z"])) == (
        "'copies' does not have each record of 'words' exactly once: 2 lost, 2 duplicated, 1 not in the input "
        "(4 records in the input, 5 in the output)\n"
        "lost:\n"
        "  b'a': words-0 at offset 0\n"
        "  b'c': words-0 at offset 1, words-1 at offset 1; in the output only copies-1 at offset 1\n"
        "duplicated:\n"
        "  b'b': copies-0 at offsets 0, 1, copies-1 at offset 0; in the input words-1 at offset 0\n"
        "not in the input:\n"
        "  b'z': copies-0 at offset 2"
    )


def test_long_lists_are_cut(broker: Broker, fill: Fill) -> None:
    text = failure(broker, fill([str(index) for index in range(50)], []))
    assert "50 lost (50 records in the input, 0 in the output)" in text
    assert text.count("\n  b'") == exactly_once.SHOWN
    assert text.endswith("\n  ... and 40 more")


def test_second_pass_keeps_few_records(broker: Broker, fill: Fill, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exactly_once, "MAX_KEPT", 10)
    text = failure(broker, fill([str(index) for index in range(200)], []))
    found = re.search(r"at least (\d+) lost \(200 records", text)
    assert found
    assert 1 <= int(found[1]) <= 12
    assert text.endswith("the comparison keeps about 10 in memory.")


def test_keys_of_input_and_output_may_have_different_functions(broker: Broker, fill: Fill) -> None:
    topics = fill(["1", "2", "skip"], [json.dumps({"id": 1}), json.dumps({"id": 2})])
    servers = broker.bootstrap_servers

    def number(record: object) -> int | None:
        text = record.value.decode()  # type: ignore[attr-defined]
        return int(text) if text.isdigit() else None

    assert_exactly_once(
        *topics, bootstrap_servers=servers, key=number, output_key=lambda record: json.loads(record.value or b"")["id"]
    )
    with pytest.raises(AssertionError, match="2 lost, 2 not in the input"):
        assert_exactly_once(*topics, bootstrap_servers=servers, key=number, output_key=lambda record: record.value)


@pytest.mark.parametrize("words", [["a"], []])
def test_aborted_records_do_not_count(broker: Broker, fill: Fill, words: list[str]) -> None:
    topics = fill(words, words)

    def abort() -> None:
        with Producer(broker.bootstrap_servers, transactional_id=topics[1]) as producer, producer.transaction() as txn:
            txn.send(topics[1], "b", partition=0)
            raise KeyError

    with pytest.raises(KeyError):
        abort()
    assert_exactly_once(*topics, bootstrap_servers=broker.bootstrap_servers)


def test_open_transaction_is_an_unfinished_pipeline(broker: Broker, fill: Fill) -> None:
    topics = fill(["a"], ["a"])
    with Producer(broker.bootstrap_servers, transactional_id=topics[1]) as producer, producer.transaction() as txn:
        txn.send(topics[1], "b", partition=1)
        producer.flush()
        text = failure(broker, topics)
    assert "the pipeline has not finished: a transaction is open in copies-1 from offset 0" in text


def test_missing_topic_and_equal_names_are_rejected(broker: Broker, fill: Fill) -> None:
    topics = fill([], [])
    with pytest.raises(UnknownTopicError, match="nope"):
        assert_exactly_once(topics[0], "nope", bootstrap_servers=broker.bootstrap_servers)
    with pytest.raises(ValueError, match="two topics"):
        assert_exactly_once("a", "a", bootstrap_servers=broker.bootstrap_servers)


def test_message_names_groups_that_wait_for_a_member(broker: Broker, fill: Fill) -> None:
    """A pipeline that was killed and started again has done nothing yet. Before, the message said only "lost"."""
    topics = fill(["a", "b"], [])
    options = {"group_id": "pipeline-7", "auto_offset_reset": "earliest"}
    servers = broker.bootstrap_servers
    with Consumer(servers, **options) as silent, Consumer(servers, **options) as waiting, Admin(servers) as admin:
        silent.subscribe([topics[0]])
        wait_until(lambda: silent.poll(0.2), "the first member reads")
        assert "wait for a member" not in failure(broker, topics)
        waiting.subscribe([topics[0]])
        wait_until(
            lambda: not waiting.poll(0.1) and admin.describe_group("pipeline-7").state == "PreparingRebalance",
            "the group waits for the first member",
        )
        assert "these groups wait for a member: 'pipeline-7'" in failure(broker, topics)

"""What the pages of the console show, over plain HTTP."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from urllib.parse import quote, urlencode

from oncelog import Admin, Consumer, Producer, Transaction, errors
from support.consoles import ConsoleProcess
from support.processes import wait_until
from support.servers import Server


@contextmanager
def open_transaction(bootstrap: str, transactional_id: str) -> Iterator[Transaction]:
    """Yield a transaction that is open until the block ends. It may have been ended by others then."""
    with (
        suppress(errors.KafkaError),
        Producer(bootstrap, transactional_id=transactional_id) as producer,
        producer.transaction() as transaction,
    ):
        yield transaction


def fill(server: Server, topic: str) -> None:
    """Write three plain records, a committed transaction of two, and an aborted one of four."""
    with Producer(server.bootstrap) as producer:
        for number in range(3):
            producer.send(topic, f"plain {number}", key="k")
    with Producer(server.bootstrap, transactional_id=f"{topic}-filler") as producer:
        with producer.transaction() as transaction:
            for number in range(2):
                transaction.send(topic, f"committed {number}")
        with suppress(KeyError), producer.transaction() as transaction:
            for number in range(4):
                transaction.send(topic, f"aborted {number}")
            producer.flush()
            raise KeyError


def test_cluster_lists_its_brokers_and_has_no_problem(console: ConsoleProcess, admin: Admin) -> None:
    known = admin.describe_cluster()
    found = console.json("/")
    assert found["cluster_id"] == known.cluster_id
    assert [row["broker"] for row in found["brokers"]["rows"]] == [item.node_id for item in known.brokers]
    assert found["offline"] == 0
    assert known.cluster_id in console.get("/").text


def test_topics_can_be_sorted_filtered_and_paged(console: ConsoleProcess, admin: Admin, name: str) -> None:
    names = [f"{name}-{number:02}" for number in range(60)]
    admin.create_topics(names, partitions=1)
    page = console.json(f"/topics?q={name}")["topics"]
    assert (page["found"], page["pages"], len(page["rows"])) == (60, 2, 50)
    last = console.json(f"/topics?q={name}&sort=name&desc=1&page=2")["topics"]
    assert [row["name"] for row in last["rows"]] == names[9::-1]
    answer = console.get(f"/topics?q={name}&page=2")
    assert "Page 2 of 2" in answer.text


def test_topic_shows_offsets_and_the_source_of_each_setting(console: ConsoleProcess, admin: Admin, name: str) -> None:
    admin.create_topics(name, partitions=2, configs={"retention.ms": "86400000"})
    with Producer(console_bootstrap(admin)) as producer:
        producer.send(name, "one", partition=1).result()
    found = console.json(f"/topics/{name}")
    assert [(row["partition"], row["leo"]) for row in found["partitions"]["rows"]] == [(0, 0), (1, 1)]
    settings = {row["name"]: row for row in found["settings"]["rows"]}
    assert settings["retention.ms"]["value"] == "86400000"
    assert settings["retention.ms"]["source"] == "topic"
    assert settings["cleanup.policy"]["source"] == "default"


def console_bootstrap(admin: Admin) -> str:
    """Return an address of the brokers."""
    return ",".join(f"{item.host}:{item.port}" for item in admin.describe_cluster().brokers)


def test_partition_draws_what_became_of_each_record(
    console: ConsoleProcess, admin: Admin, server: Server, name: str
) -> None:
    admin.create_topics(name, partitions=1)
    fill(server, name)
    with open_transaction(server.bootstrap, f"{name}-open") as transaction:
        transaction.send(name, "open").result()
        found = console.json(f"/topics/{name}/0?sort=first")
        spans = [(row["first"], row["last"], row["state"]) for row in found["spans"]["rows"]]
        assert spans == [
            (0, 2, "plain"),
            (3, 4, "committed"),
            (5, 5, "commit marker"),
            (6, 9, "aborted"),
            (10, 10, "abort marker"),
            (11, 11, "open"),
        ]
        assert (found["last_stable_offset"], found["high_watermark"]) == (11, 12)
        [holder] = found["open_transactions"]
        assert (holder["transactional_id"], holder["first_offset"]) == (f"{name}-open", 11)
        page = console.get(f"/topics/{name}/0")
        assert "read_committed consumers wait at offset 11" in page.text
        assert 'class="span open"' in page.body


def test_window_that_begins_inside_a_transaction_knows_its_outcome(
    console: ConsoleProcess, admin: Admin, server: Server, name: str
) -> None:
    admin.create_topics(name, partitions=1)
    fill(server, name)
    spans = console.json(f"/topics/{name}/0?from=8&span=25&sort=first")["spans"]["rows"]
    assert [row["state"] for row in spans] == ["aborted", "abort marker"]


def test_partition_shows_the_position_of_each_group(
    console: ConsoleProcess, admin: Admin, server: Server, name: str
) -> None:
    admin.create_topics(name, partitions=1)
    fill(server, name)
    admin.set_offsets(f"{name}-group", {(name, 0): 4})
    rows = {row["group"]: row for row in console.json(f"/topics/{name}/0")["groups"]["rows"]}
    assert (rows[f"{name}-group"]["committed"], rows[f"{name}-group"]["lag_hw"]) == (4, 7)


def test_transactions_show_age_and_partitions(console: ConsoleProcess, admin: Admin, server: Server, name: str) -> None:
    admin.create_topics(name, partitions=3)
    with open_transaction(server.bootstrap, name) as transaction:
        for partition in range(3):
            transaction.send(name, "open", partition=partition).result()
        rows = {row["transactional_id"]: row for row in console.json(f"/transactions?q={name}")["transactions"]["rows"]}
        assert (rows[name]["state"], rows[name]["pending"]) == ("Ongoing", 3)
        assert rows[name]["age_ms"] >= 0
        assert f"{name}: Ongoing" in console.get("/transactions").body


def test_open_transaction_is_ended_after_a_question(
    console: ConsoleProcess, admin: Admin, server: Server, name: str
) -> None:
    admin.create_topics(name, partitions=1)
    strange = f"{name}/?&=#<b>"
    with open_transaction(server.bootstrap, strange) as transaction:
        transaction.send(name, "lost").result()
        question = console.get("/transaction/end?" + urlencode({"id": strange}))
        assert "at most 1 in the partitions below" in question.text
        shown = question.body.split('name="shown" value="')[1].split('"')[0]
        early = console.post("/transaction/end", {"id": strange, "shown": "1.2.3"})
        assert early.status == 409
        assert admin.describe_transaction(strange).state == "Ongoing"
        answer = console.post("/transaction/end", {"id": strange, "shown": shown})
        assert (answer.status, answer.headers["location"]) == (303, f"/transaction?{urlencode({'id': strange})}")
        ended = ("CompleteAbort", "Empty")
        wait_until(lambda: admin.describe_transaction(strange).state in ended, "the transaction is aborted")
        assert "End this transaction" not in console.get(answer.headers["location"]).text


def test_events_report_a_new_record(console: ConsoleProcess, admin: Admin, server: Server, name: str) -> None:
    admin.create_topics(name, partitions=1)
    events = console.events(f"/topics/{name}/0")
    first = next(events)
    assert first["title"] == f"{name}-0"
    assert "This part of the log is empty" in first["html"]
    with Producer(server.bootstrap) as producer:
        producer.send(name, "new").result()
    wait_until(lambda: 'class="span plain"' in next(events)["html"], "the drawing has the record")
    events.close()  # type: ignore[attr-defined]


def test_viewers_of_a_page_share_its_requests(console: ConsoleProcess, admin: Admin, name: str) -> None:
    admin.create_topics(name, partitions=1)
    viewers = [console.events(f"/topics/{name}") for _ in range(8)]
    costs = [next(each)["cost"] for each in viewers]
    assert costs[-1].startswith("8 viewers")
    for each in viewers:
        each.close()  # type: ignore[attr-defined]
    wait_until(
        lambda: console.get("/topics").body.split('id="cost">')[1].startswith("0 viewers"), "the viewers have left"
    )


def test_producers_stand_beside_their_coordinators_view(
    console: ConsoleProcess, admin: Admin, server: Server, name: str
) -> None:
    admin.create_topics(name, partitions=1)
    with open_transaction(server.bootstrap, name) as transaction:
        transaction.send(name, "open").result()
        [row] = console.json(f"/topics/{name}/0/producers")["producers"]["rows"]
        assert (row["transactional_id"], row["state"], row["agrees"]) == (name, "Ongoing", "both open")
        assert row["first_offset"] == 0
        [same] = console.json(f"/producers?topic={name}")["producers"]["rows"]
        assert (same["topic"], same["transactional_id"]) == (name, name)


def test_group_shows_members_and_lag_to_both_ends(
    console: ConsoleProcess, admin: Admin, server: Server, name: str
) -> None:
    admin.create_topics(name, partitions=1)
    fill(server, name)
    with open_transaction(server.bootstrap, f"{name}-open") as transaction:
        transaction.send(name, "open").result()
        with Consumer(server.bootstrap, group_id=name, auto_offset_reset="earliest", client_id="reader") as consumer:
            consumer.subscribe([name])
            records = consumer.poll(60)
            assert records
            consumer.commit({(name, 0): 5})
            found = console.json(f"/group?id={name}")
            assert [row["client_id"] for row in found["members"]["rows"]] == ["reader"]
            [row] = found["offsets"]["rows"]
            assert (row["committed"], row["lag_lso"], row["lag_hw"]) == (5, 6, 7)
            listed = {row["group"]: row for row in console.json(f"/groups?q={name}")["groups"]["rows"]}
            assert (listed[name]["lag_lso"], listed[name]["lag_hw"]) == (6, 7)


def test_reset_of_a_group_shows_first_what_it_would_do(
    console: ConsoleProcess, admin: Admin, server: Server, name: str
) -> None:
    admin.create_topics(name, partitions=1)
    fill(server, name)
    admin.set_offsets(name, {(name, 0): 8})
    page = console.json(f"/group/reset?id={name}&to=shift&value=-5")
    assert [(row["committed"], row["target"]) for row in page["preview"]["rows"]] == [(8, 3)]
    assert admin.committed(name)[name, 0] == 8
    question = console.get(f"/group/reset?id={name}&to=shift&value=-5")
    assert "reads 5 offsets again" in question.text
    [shown] = re.findall(r'name="shown" value="(\w+)"', question.body)
    form = {"id": name, "to": "shift", "value": "-5", "shown": shown}
    assert console.post("/group/reset", form).status == 303
    assert admin.committed(name)[name, 0] == 3
    again = console.post("/group/reset", form)
    assert (again.status, admin.committed(name)[name, 0]) == (409, 3), "the group has moved since the question"
    assert "has committed offsets since" in again.text


def test_reset_of_a_group_with_members_or_without_existence_is_explained(
    console: ConsoleProcess, admin: Admin, server: Server, name: str
) -> None:
    admin.create_topics(name, partitions=1)
    assert console.get(f"/group/reset?id={name}").status == 404
    assert console.get(f"/transaction?id={name}").status == 404
    with Consumer(server.bootstrap, group_id=name) as consumer:
        consumer.subscribe([name])
        consumer.poll(0.1)
        consumer.commit({(name, 0): 0})
        assert "stop them first" in console.get(f"/group/reset?id={name}").text


def test_messages_by_offset_key_text_and_state(
    console: ConsoleProcess, admin: Admin, server: Server, name: str
) -> None:
    admin.create_topics(name, partitions=1)
    fill(server, name)

    def values(query: str) -> list[str | None]:
        rows = console.json(f"/topics/{name}/0/messages?{query}")["messages"]["rows"]
        return [row["value"] for row in rows]

    assert values("at=offset&offset=4&limit=2") == ["committed 1", "aborted 0"]
    assert values("at=start&key=k") == ["plain 0", "plain 1", "plain 2"]
    assert values("at=start&contains=d+1") == ["committed 1", "aborted 1"]
    assert values("at=start&committed=1&contains=ed") == ["committed 0", "committed 1"]
    rows = console.json(f"/topics/{name}/0/messages?at=offset&offset=5&limit=1&control=1")["messages"]["rows"]
    assert [(row["offset"], row["state"]) for row in rows] == [(5, "commit marker")]
    assert console.json(f"/topics/{name}/0/messages?at=time&time=0")["messages"]["rows"][0]["offset"] == 0


def test_message_is_produced_with_headers(console: ConsoleProcess, admin: Admin, name: str) -> None:
    admin.create_topics(name, partitions=2)
    fields = {"partition": "1", "key": "ключ", "value": '{"a": [1]}', "headers": "trace: 7\r\nempty:"}
    answer = console.post(f"/topics/{name}/produce", fields)
    assert answer.status == 303, answer.text
    [row] = console.json(answer.headers["location"] + "&as=json")["messages"]["rows"]
    assert (row["key"], row["value"]) == ("ключ", '{\n  "a": [\n    1\n  ]\n}')
    assert row["headers"] == ["trace: 7", "empty: "]
    tombstone = console.post(f"/topics/{name}/produce", {"key": "k", "null": "1"})
    [row] = console.json(tombstone.headers["location"])["messages"]["rows"]
    assert row["value"] is None


def test_missing_topic_and_page_say_so(console: ConsoleProcess) -> None:
    missing = f"no-{uuid.uuid4()}"
    answer = console.get(f"/topics/{missing}")
    assert answer.status == 404
    assert "This topic or partition does not exist" in answer.text
    assert console.get(f"/topics/{quote('a/b', safe='')}").status == 404
    assert console.get("/nothing").status == 404
    post = console.post(f"/topics/{missing}/produce", {"value": "x"})
    assert post.status == 404


def test_console_that_only_reads_changes_nothing(
    start_console: Callable[..., ConsoleProcess], admin: Admin, server: Server, name: str
) -> None:
    admin.create_topics(name, partitions=1)
    console = start_console(server.bootstrap, "--read-only")
    answer = console.post(f"/topics/{name}/produce", {"value": "x"})
    assert answer.status == 403
    assert "--allow-changes" in answer.text
    assert admin.end_offsets([(name, 0)]) == {(name, 0): 0}
    assert "Produce a message" not in console.get(f"/topics/{name}").text

"""The pages of access, settings and Spark sinks, over plain HTTP."""

from __future__ import annotations

from contextlib import suppress

from oncelog import Admin, Producer, errors
from oncelog.client.admin.quotas import ClientQuotaEntity
from oncelog.client.admin.users import UserScramCredentialDeletion, UserScramCredentialUpsertion
from oncelog.spark.commit.names import decision_topic
from oncelog.spark.commit.record import Record, Source
from support.consoles import ConsoleProcess
from support.servers import Server


def test_access_shows_users_and_quotas_but_no_password(console: ConsoleProcess, admin: Admin, name: str) -> None:
    admin.alter_user_scram_credentials(UserScramCredentialUpsertion(name, "a very secret word"))
    entity = ClientQuotaEntity(user=name)
    admin.alter_client_quotas({entity: {"producer_byte_rate": 1000.0}})
    try:
        found = console.json(f"/access?q={name}&quotas-q={name}")
        assert [(row["user"], row["mechanism"]) for row in found["users"]["rows"]] == [(name, "SCRAM-SHA-512")]
        assert [(row["key"], row["value"]) for row in found["quotas"]["rows"]] == [("producer_byte_rate", 1000)]
        page = console.get("/access")
        assert "a very secret word" not in page.body
        assert "The brokers have no authorizer" in page.text
    finally:
        admin.alter_client_quotas({entity: {"producer_byte_rate": None}})
        admin.alter_user_scram_credentials(UserScramCredentialDeletion(name))


def test_settings_of_a_broker_have_their_sources(console: ConsoleProcess, admin: Admin) -> None:
    broker = admin.describe_cluster().brokers[0].node_id
    found = console.json("/settings?q=log.retention")
    assert found["broker"] == broker
    rows = {row["name"]: row for row in found["settings"]["rows"]}
    assert rows["log.retention.check.interval.ms"]["source"] == "broker's start"
    assert console.get("/settings?broker=4711").status == 502


def test_sink_is_found_with_its_decision_and_open_transactions(
    console: ConsoleProcess, admin: Admin, server: Server, name: str
) -> None:
    topic = decision_topic(name)
    admin.create_topics(topic, partitions=1, configs={"cleanup.policy": "compact"})
    admin.create_topics(name, partitions=1)
    source = Source("stream", "a-query", 41)
    record = Record(source=source, plan=1, slots=1, rows=7, settled=True, topics=(name,), prefix=name)
    with Producer(server.bootstrap, transactional_id=f"{name}-driver") as producer, producer.transaction() as decide:
        decide.send(topic, record.encode(), key=name)
    rows = {row["prefix"]: row for row in console.json("/sinks")["sinks"]["rows"]}
    assert rows[name] == {"prefix": name, "decision_topic": topic, "open": 0, "ids": 0}
    answer = console.get(f"/sink?prefix={name}")
    assert answer.status == 200, answer.text
    found = console.json(f"/sink?prefix={name}")
    assert (found["query"], found["batch"], found["rows"], found["settled"]) == ("a-query", 41, 7, True)


def test_topic_that_is_no_sinks_is_explained(console: ConsoleProcess, admin: Admin, name: str) -> None:
    admin.create_topics(decision_topic(name), partitions=1)
    with suppress(errors.KafkaError):
        admin.create_topics(name, partitions=1)
    answer = console.get(f"/sink?prefix={name}")
    assert answer.status in (200, 400), answer.text
    missing = console.get(f"/sink?prefix={name}-missing")
    assert missing.status == 400
    assert "no sink" in missing.text
    assert console.get("/sink?prefix=a/b").status == 400

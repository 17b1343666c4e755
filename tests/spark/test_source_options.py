"""The source's offsets and options, without a broker, and Java from a wheel."""

from __future__ import annotations

import asyncio
import pickle
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StringType, StructField, StructType

from oncelog.client.other_options import OTHER_OPTIONS, OTHER_PREFIXES, Advice
from oncelog.errors import AuthenticationError, TimedOutError
from oncelog.spark.commit.errors import MisuseError, SinkError
from oncelog.spark.commit.names import TopicPartition
from oncelog.spark.datasource import OncelogDataSource
from oncelog.spark.options import warn_once
from oncelog.spark.reading.batch import BatchSource
from oncelog.spark.reading.offsets import Range, flattened, limited, nested, split
from oncelog.spark.reading.options import (
    EARLIEST,
    Patience,
    Position,
    Subscription,
    Trigger,
    check_options,
    source_options,
)
from oncelog.spark.reading.stream import StreamSource
from oncelog.spark.user_errors import in_spark, translate_errors
from oncelog.spark.writing.options import sink_options
from oncelog.spark.writing.sink import StreamSink
from support.certificates import authority

GIVEN = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "t"}
FLAT = st.dictionaries(
    st.tuples(st.sampled_from("ab"), st.integers(0, 12)).map(lambda at: TopicPartition(*at)), st.integers(0, 10_000)
)


@given(FLAT)
def test_offsets_round_trip_through_json(flat: dict[TopicPartition, int]) -> None:
    assert flattened(nested(flat)) == flat


@given(FLAT, FLAT, st.integers(1, 20_000))
def test_limited_batch_takes_its_limit_and_never_goes_back(
    start: dict[TopicPartition, int], more: dict[TopicPartition, int], most: int
) -> None:
    start = {at: start.get(at, 0) for at in more}
    end = {at: start[at] + more[at] for at in more}
    ends = limited(start, end, most)
    assert all(start[at] <= ends[at] <= end[at] for at in end)
    assert sum(ends[at] - start[at] for at in end) == min(most, sum(more.values()))


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 1000)), max_size=5), st.integers(1, 30))
def test_splits_cover_every_offset_once(pieces: list[tuple[int, int]], least: int) -> None:
    ranges = [Range(TopicPartition("t", n), start, start + size) for n, (start, size) in enumerate(pieces)]
    parts = split(ranges, least)
    for whole in ranges:
        own = [part for part in parts if part.at == whole.at]
        assert own[0].start == whole.start
        assert own[-1].end == whole.end
        assert all(a.end == b.start and a.end > a.start for a, b in pairwise(own))


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=6), st.integers(1, 400))
def test_no_split_exceeds_its_maximum(sizes: list[int], most: int) -> None:
    ranges = [Range(TopicPartition("t", n), 7, 7 + size) for n, size in enumerate(sizes)]
    parts = split(ranges, None, most)
    assert all(0 < part.size <= most for part in parts)
    assert len(parts) == sum(-(-size // most) for size in sizes)


def test_splits_are_proportional_to_the_sizes_of_partitions() -> None:
    ranges = [Range(TopicPartition("t", n), 0, size) for n, size in enumerate((1, 1, 1, 3000))]
    assert len(split(ranges, 10)) == 10, "fully kept batches do not count"
    assert [r.at.partition for r in split(ranges, 4)] == [0, 1, 2, 3]
    assert len(split(ranges, 10, 100)) == 33


def test_defaults_equal_those_of_the_kafka_connector() -> None:
    streaming, batch = source_options(GIVEN, streaming=True), source_options(GIVEN, streaming=False)
    assert streaming.starting == Position(everywhere=-1, option="startingOffsets")
    assert batch.starting == Position(everywhere=-2, option="startingOffsets")
    assert batch.ending == Position(everywhere=-1, option="endingOffsets")
    assert streaming.fail_on_data_loss
    assert streaming.committed
    assert streaming.subscription == Subscription(topics=("t",))


@pytest.mark.parametrize(
    ("changed", "streaming", "said"),
    [
        ({"assign": '{"t":[0]}'}, True, "exactly one.*subscribe and assign"),
        ({"subscribe": ""}, True, "option subscribe='': it must name at least one topic"),
        ({"subscribe": "a b"}, True, "option subscribe: 'a b' is not a topic name"),
        ({"subscribe": None}, True, "exactly one.*not none"),
        ({"subscribe": None, "subscribePattern": "a("}, True, "option subscribePattern='a\\(': it must be a regular"),
        ({"subscribe": None, "subscribePattern": " "}, True, "option subscribePattern is empty"),
        ({"subscribe": None, "assign": '{"t":0}'}, True, "option assign=.*it must be partitions by topic"),
        ({"subscribe": None, "assign": '{"t":[-1]}'}, True, "option assign=.*it must be partitions by topic"),
        ({"subscribe": None, "assign": "{}"}, True, "option assign=.*it must be partitions by topic"),
        ({"subscribe": None, "assign": '{"t":[true]}'}, True, "option assign=.*it must be partitions by topic"),
        ({"kafka.bootstrap.servers": None}, True, "kafka.bootstrap.servers is missing"),
        ({"kafka.bootstrap.servers": "localhost"}, True, "kafka.bootstrap.servers='localhost'.*host:port"),
        ({"kafka.security.protocol": "TLS"}, True, "option kafka.security.protocol.*SASL_SSL"),
        ({"kafka.security.protocol": "SASL_SSL"}, True, "option kafka.sasl.mechanism is missing"),
        ({"kafka.sasl.mechanism": "PLAIN"}, True, "option kafka.sasl.mechanism"),
        ({"kafka.ssl.key.pem": "-----BEGIN PRIVATE KEY-----"}, True, "option kafka.ssl.key.pem: Spark shows this key"),
        ({"kafka.ssl.keystore.key": "-----BEGIN ENCRYPTED"}, True, "option kafka.ssl.keystore.key has no effect"),
        (
            {"kafka.sasl.jaas.config": 'password="p";'},
            True,
            "option kafka.sasl.jaas.config has no effect with kafka.security.protocol = PLAINTEXT; "
            "set kafka.security.protocol = SASL_SSL",
        ),
        (
            {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "OAUTHBEARER"},
            True,
            "option kafka.sasl.mechanism = OAUTHBEARER needs kafka.sasl.oauthbearer.token.endpoint.url$",
        ),
        (
            {"kafka.security.protocol": "SSL", "kafka.ssl.ca.location": "/a", "kafka.ssl.ca.pem": "b"},
            True,
            "option kafka.ssl.truststore.location and kafka.ssl.truststore.certificates: set one of them",
        ),
        (
            {"kafka.security.protocol": "SSL", "kafka.ssl.ca.location": "/etc/ssl.key.location"},
            True,
            "option kafka.ssl.truststore.location = '/etc/ssl.key.location': No such file",
        ),
        ({"kafka.ssl.ca": "x"}, True, "option kafka.ssl.ca: set kafka.ssl.ca.location or kafka.ssl.ca.pem"),
        (
            {"kafka.ssl.cipher.suites": "x"},
            True,
            "option kafka.ssl.cipher.suites: it is not supported; omit it",
        ),
        (
            {"startingOffsets": "first"},
            True,
            "startingOffsets='first': it must be earliest, latest, or offsets such as",
        ),
        ({"startingOffsets": '{"t":{"0":-3}}'}, True, "startingOffsets: each partition needs a number of at least -2"),
        ({"startingOffsets": '{"t":{"0":1.5}}'}, True, "startingOffsets: it must be offsets by topic"),
        ({"startingOffsets": '{"t":{"0":1'}, True, "startingOffsets=.*it must be JSON"),
        ({"startingOffsets": "{}"}, True, "startingOffsets: each partition needs a number"),
        ({"startingTimestamp": "-1"}, True, "startingTimestamp='-1'"),
        ({"startingTimestamp": "yesterday"}, True, "startingTimestamp='yesterday'"),
        (
            {"startingOffsetsByTimestamp": '{"t":{"0":-1}}'},
            True,
            "startingOffsetsByTimestamp: each partition needs a number of at least 0",
        ),
        ({"startingOffsetsByTimestampStrategy": "skip"}, True, "Strategy='skip': it must be one of error, latest"),
        ({"endingTimestamp": "5"}, True, "endingTimestamp is for batch reads"),
        ({"endingOffsetsByTimestamp": '{"t":{"0":1}}'}, True, "endingOffsetsByTimestamp is for batch reads"),
        ({"startingTimestamp": "6", "endingTimestamp": "5"}, False, "startingTimestamp=6 is after endingTimestamp=5"),
        (
            {"startingOffsets": '{"t":{"0":6}}', "endingOffsets": '{"t":{"0":5}}'},
            False,
            "startingOffsets=6 of t-0 is after endingOffsets=5",
        ),
        (
            {"startingOffsets": '{"t":{"0":6}}', "endingOffsets": '{"t":{"1":9}}'},
            False,
            "startingOffsets and endingOffsets must name the same partitions; they differ in t-0, t-1",
        ),
        ({"startingOffsets": '{"t":{"0":-1}}'}, False, "startingOffsets=latest"),
        ({"endingOffsets": '{"t":{"0":-2}}'}, False, "endingOffsets=earliest"),
        ({"minPartitions": "0"}, True, "minPartitions"),
        ({"minPartitions": "²"}, True, "minPartitions"),
        ({"maxRecordsPerPartition": "none"}, True, "maxRecordsPerPartition"),
        (
            {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"},
            True,
            "minOffsetsPerTrigger=9: it must not be more",
        ),
        ({"maxTriggerDelay": "soon"}, True, "maxTriggerDelay='soon'"),
        ({"fetchOffset.numRetries": "x"}, True, "fetchOffset.numRetries"),
        ({"kafkaConsumer.pollTimeoutMs": "-1"}, True, "kafkaConsumer.pollTimeoutMs"),
        ({"bootstrapTimeoutMs": "1s"}, True, "bootstrapTimeoutMs"),
        ({"kafka.max.partition.fetch.bytes": "8M"}, True, "kafka.max.partition.fetch.bytes"),
        ({"endingOffsets": "latest", "startingOffsets": "latest"}, False, "startingOffsets"),
        ({"endingOffsets": "earliest"}, False, "endingOffsets"),
        ({"endingOffsets": '{"t":{"0":5}}'}, True, "endingOffsets is for batch reads"),
        ({"startingOffsets": "sometime"}, True, "startingOffsets"),
        ({"startingOffsets": '{"t":5}'}, True, "startingOffsets"),
        ({"startingOffsetsByTimestamp": "{"}, True, "startingOffsetsByTimestamp"),
        ({"maxOffsetsPerTrigger": "0"}, True, "maxOffsetsPerTrigger"),
        ({"failOnDataLoss": "yes"}, True, "failOnDataLoss"),
        ({"kafka.isolation.level": "serializable"}, True, "kafka.isolation.level"),
        ({"kafka.auto.offset.reset": "earliest"}, True, "startingOffsets"),
        ({"kafka.request.timeout": "5"}, True, "kafka.request.timeout.ms"),
        ({"maxOffsetPerTrigger": "5"}, True, "maxOffsetsPerTrigger"),
    ],
)
def test_misuse_names_the_option(changed: dict[str, str | None], streaming: bool, said: str) -> None:
    given = {name: value for name, value in {**GIVEN, **changed}.items() if value is not None}
    with pytest.raises(MisuseError, match=said):
        source_options(given, streaming=streaming)


OF_SECURITY = ("ssl", "sasl", "https", "security", "enable_ssl", "enable_sasl", "oauth")
ADVICE = {
    known.text
    for name, known in {**OTHER_OPTIONS, **OTHER_PREFIXES}.items()
    if isinstance(known, Advice) and name.startswith(OF_SECURITY)
}


@pytest.mark.parametrize("advice", sorted(ADVICE))
def test_advice_names_only_options_that_spark_has(advice: str) -> None:
    named = re.findall(r"[\w.]*(?:ssl|sasl|backoff|timeout)[._][\w.]*", in_spark(advice))
    assert all(name.startswith("kafka.") and "_" not in name for name in named)


def test_error_of_a_broker_names_options_as_spark_spells_them() -> None:
    error = AuthenticationError("b:1 rejected the login; check sasl.username and sasl.password, or sasl.jaas.config")
    said = "check kafka.sasl.username and kafka.sasl.password, or kafka.sasl.jaas.config"
    assert said in in_spark(str(error))
    assert in_spark(in_spark(str(error))) == in_spark(str(error))

    @translate_errors
    def fail() -> None:
        raise error

    with pytest.raises(SinkError, match=said):
        fail()


def test_security_reaches_the_executors_and_no_text(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_bytes(authority().certificate_pem)
    line = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="a" password="hunter2";'
    secured = {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.ssl.truststore.location": str(ca),
        "kafka.ssl.truststore.type": "PEM",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": line,
    }
    options = source_options({**GIVEN, **secured}, streaming=True)
    sent = pickle.loads(pickle.dumps(options))
    for each in (options, sent):
        assert repr(each.client["security"]) == "Security(SASL_SSL, SCRAM-SHA-512)"
        assert "hunter2" not in repr(each)
    assert asyncio.run(sent.client["security"].tls.context()).get_ca_certs()
    assert sent.client["security"].login.username == "a"


def test_load_accepts_options_of_streams_and_of_batch_reads() -> None:
    assert check_options({**GIVEN, "startingOffsets": "latest"}).starting.everywhere == -1
    assert check_options({**GIVEN, "endingTimestamp": "5"}).ending.timestamp == 5
    with pytest.raises(
        MisuseError, match=r"for a stream: option endingTimestamp.*for a batch read: option startingOffsets"
    ):
        check_options({**GIVEN, "startingOffsets": "latest", "endingTimestamp": "5"})
    with pytest.raises(MisuseError, match=r"^option minPartitions='x'"):
        check_options({**GIVEN, "startingOffsets": "latest", "minPartitions": "x"})


def test_triggers_and_retries_have_the_connectors_defaults() -> None:
    options = source_options({**GIVEN, "minOffsetsPerTrigger": "5", "maxTriggerDelay": "2m"}, streaming=True)
    assert options.trigger == Trigger(least=5, delay_ms=120_000)
    assert source_options(GIVEN, streaming=True).trigger == Trigger(delay_ms=15 * 60_000)
    assert options.patience == Patience(3, 1_000, 120_000, 30_000)
    assert source_options({**GIVEN, "maxTriggerDelay": "250"}, streaming=True).trigger.delay_ms == 250


@pytest.mark.parametrize("spell", [str.upper, str.title, " {} ".format])
def test_words_of_options_may_have_any_case_and_spaces(spell: Callable[[str], str]) -> None:
    given = {
        "kafka.bootstrap.servers": "localhost:9092",
        "subscribe": "a",
        "kafka.isolation.level": spell("read_uncommitted"),
        "failOnDataLoss": spell("false"),
        "includeHeaders": spell("true"),
        "startingOffsets": spell("earliest"),
        "startingOffsetsByTimestampStrategy": spell("latest"),
        "transactionalIdPrefix": "p",
        "takeOver": spell("true"),
        "kafka.compression.type": spell("zstd"),
        "kafka.acks": spell("all"),
        "kafka.enable.idempotence": spell("true"),
    }
    read = source_options(given, streaming=True)
    assert (read.committed, read.fail_on_data_loss, read.include_headers) == (False, False, True)
    assert read.starting.everywhere == EARLIEST
    written = sink_options(given, streaming=True)
    assert (written.permission.take_over, written.compression) == (True, "zstd")


def test_options_are_case_insensitive_and_foreign_ones_are_ignored() -> None:
    given = {"Kafka.Bootstrap.Servers": "b:1", "SUBSCRIBE": "t, u", "path": "/x", "checkpointlocation": "/y"}
    options = source_options({**given, "startingoffsets": "EARLIEST"}, streaming=True)
    assert options.subscription.topics == ("t", "u")
    assert options.starting == Position(everywhere=-2, option="startingOffsets")
    assert options.client == {"bootstrap_servers": "b:1"}


ALL = {
    **GIVEN,
    "startingOffsets": "earliest",
    "MAXOFFSETSPERTRIGGER": "5",
    "kafka.group.id": "g",
    "kafka.isolation.level": "read_committed",
    "kafka.compression.type": "zstd",
    "topic": "u",
    "transactionalIdPrefix": "p",
    "bootstrapTimeoutMs": "1",
    "kafka.linger.ms": "5",
    "checkpointLocation": "c",
}


@pytest.mark.parametrize(
    ("make", "idle"),
    [
        (StreamSource, "a streaming read: topic, transactionalIdPrefix, kafka.compression.type"),
        (
            BatchSource,
            "a batch read: maxOffsetsPerTrigger, topic, transactionalIdPrefix, kafka.group.id, kafka.compression.type",
        ),
        (
            lambda given: StreamSink(given, StructType([StructField("value", StringType())]), False),
            "a sink: subscribe, startingOffsets, maxOffsetsPerTrigger, kafka.isolation.level, kafka.group.id",
        ),
    ],
    ids=["stream", "batch", "sink"],
)
def test_options_of_the_other_direction_are_named_once(
    make: Callable[[dict[str, str]], object], idle: str, caplog: pytest.LogCaptureFixture
) -> None:
    warn_once.cache_clear()
    for _ in range(2):
        make(ALL)
    assert [record.getMessage() for record in caplog.records] == [f"options without effect on {idle}"]
    caplog.clear()
    warn_once.cache_clear()
    make({name: value for name, value in ALL.items() if name.lower() not in idle.lower()})
    assert not caplog.records


def test_failed_commit_for_lag_tools_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """The query continues, because it needs only its checkpoint."""

    class Unable:
        cluster = None

        def run_many(self, calls: list[Any]) -> None:
            for call in calls:
                call.close()
            raise TimedOutError("the coordinator does not answer")

    warn_once.cache_clear()
    source = StreamSource({**GIVEN, "groupIdPrefix": "g"})
    source._cluster = Unable()  # type: ignore[assignment]
    for offset in range(3):
        source.commit({"t": {"0": offset}})
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith("cannot commit the query's progress to group 'g' for lag tools: the coordinator does not")


def test_table_in_the_catalog_is_rejected_with_advice() -> None:
    """With columns, Spark creates the table without a question. Its reads and writes then have no options."""
    said = "CREATE TEMPORARY VIEW name USING oncelog OPTIONS"
    created = {**GIVEN, "provider": "oncelog", "option.subscribe": "t", "owner": "me"}
    with pytest.raises(MisuseError, match=rf"^CREATE TABLE ... USING oncelog: Spark does not pass .*{said}"):
        OncelogDataSource(created).schema()
    schema = StructType([StructField("value", StringType())])
    for use in (lambda made: made.reader(schema), lambda made: made.writer(schema, False)):
        with pytest.raises(MisuseError, match=rf"^this read or write has no options: .*{said}"):
            use(OncelogDataSource({}))

"""Options: names, spellings, conflicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import oncelog
from oncelog import aio
from oncelog.client.consumer.options import CONSUMER, consumer_options
from oncelog.client.other_options import OTHER_OPTIONS, Alias, advice_for_unsupported
from oncelog.client.producer.options import PRODUCER, producer_options
from oncelog.client.records import milliseconds
from oncelog.errors import ConfigError
from oncelog.protocol.compression import Codec
from oncelog.serialization import JsonSerializer

B = {"bootstrap_servers": "localhost:9092"}


def test_dotted_names_and_texts() -> None:
    options = producer_options({"linger.ms": "20", "compression.type": "zstd", "acks": "-1"}, {**B, "batch_size": 5})
    assert (options["linger_ms"], options["compression_type"], options["batch_size"]) == (20, Codec.ZSTD, 5)
    assert options["enable_idempotence"] is True


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"enable_idempotence": True, "acks": 1}, ("enable_idempotence", "acks = 1")),
        ({"enable_idempotence": True, "acks": "0"}, ("enable_idempotence", "acks = 0")),
        ({"enable_idempotence": True, "retries": 0}, ("enable_idempotence", "retries = 0")),
        (
            {"enable_idempotence": "true", "max_in_flight_requests_per_connection": 6},
            ("enable_idempotence", "max_in_flight_requests_per_connection = 6"),
        ),
        ({"transactional_id": "x", "acks": 1}, ("transactional_id", "acks = 1")),
        ({"transactional_id": "x", "enable_idempotence": False}, ("transactional_id", "enable_idempotence")),
        ({"delivery_timeout_ms": 10, "linger_ms": 5}, ("delivery_timeout_ms", "linger_ms + request_timeout_ms")),
        ({"lingerms": 1}, ("lingerms", "linger_ms")),
        ({"acks": "some"}, ("acks", "all, 1 or 0")),
        ({"linger_ms": -1}, ("linger_ms", "-1")),
        ({"compression.type": "gzip", "compression.level": 12}, ("compression_level = 12", "gzip", "-1 to 9")),
        ({"compression.lz4.level": 18}, ("compression.lz4.level", "1 to 17")),
        (
            {"compression_type": "zstd", "compression_zstd_level": 5, "compression_level": 6},
            ("compression_level = 6", "compression_zstd_level = 5"),
        ),
        ({"partitioner": "round_robin", "partitioner_ignore_keys": True}, ("partitioner_ignore_keys", "round_robin")),
        ({"partitioner.class": "org.apache.kafka.X"}, ("partitioner.class", "callable")),
        (
            {"transaction.two.phase.commit.enable": "true"},
            ("transaction_two_phase_commit_enable needs", "transactional_id"),
        ),
        (
            {"transaction_two_phase_commit_enable": True, "transactional_id": "a", "transaction_timeout_ms": 1},
            ("transaction_two_phase_commit_enable = true excludes", "transaction_timeout_ms"),
        ),
        ({"keep_prepared_transaction": True}, ("keep_prepared_transaction needs", "transactional_id")),
        ({"key.serializer": "org.apache.kafka.X"}, ("key.serializer", "JsonSerializer()")),
        ({"key.deserializer": "org.apache.kafka.X"}, ("key.deserializer", "producers have key_serializer")),
        ({"value.serializer": lambda data: data}, ("value.serializer", "(data, context)")),
        ({"value.serializer": JsonSerializer}, ("value.serializer", "JsonSerializer()")),
        ({"interceptor.classes": "X"}, ("interceptor.classes", "wrap send")),
        ({"sasl.mechanism": "GSSAPI"}, ("sasl.mechanism", "Kerberos", "SCRAM-SHA-512")),
        ({"metadata.max.idle.ms": 4_999}, ("metadata.max.idle.ms", "5000")),
        ({"statistics.interval.ms": 100}, ("statistics_interval_ms = 100", "on_statistics")),
        ({"stats_cb": print}, ("on_statistics", "statistics_interval_ms = 0")),
        ({"stats_cb": 5, "statistics.interval.ms": 100}, ("stats_cb = 5", "function")),
    ],
)
def test_conflicts_name_both_sides(given: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        producer_options(None, {**B, **given})
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize("read", [producer_options, consumer_options])
def test_error_for_a_mapping_in_place_of_addresses_names_the_argument(read: Any) -> None:
    with pytest.raises(ConfigError, match="by name: config="):
        read(None, {"bootstrap_servers": {"bootstrap.servers": "localhost:9092"}})


def test_levels_depend_on_the_codec() -> None:
    levels = {"compression.gzip.level": 1, "compression.lz4.level": "9", "compression.zstd.level": -5}
    for codec, level in (("gzip", 1), ("lz4", 9), ("zstd", -5), ("snappy", None), ("none", None)):
        given = {**B, "compression_type": codec, **levels}
        assert producer_options(None, given)["compression_level"] == level


KAFKAS = """
acks batch.size bootstrap.servers buffer.memory client.dns.lookup client.id compression.gzip.level compression.lz4.level
compression.type compression.zstd.level config.providers connections.max.idle.ms delivery.timeout.ms
enable.idempotence enable.metrics.push interceptor.classes key.serializer linger.ms max.block.ms
max.in.flight.requests.per.connection max.request.size metadata.max.age.ms metadata.max.idle.ms
metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy metric.reporters metrics.num.samples
metrics.recording.level metrics.sample.window.ms partitioner.adaptive.partitioning.enable
partitioner.availability.timeout.ms partitioner.class partitioner.ignore.keys receive.buffer.bytes
reconnect.backoff.max.ms reconnect.backoff.ms request.timeout.ms retries retry.backoff.max.ms retry.backoff.ms
security.protocol security.providers send.buffer.bytes
socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms
transaction.timeout.ms transaction.two.phase.commit.enable transactional.id value.serializer
"""
"""ProducerConfig of Apache Kafka 4.3.1, without SECURITY."""

SECURITY = """
sasl.client.callback.handler.class sasl.jaas.config sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin
sasl.kerberos.service.name sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor
sasl.login.callback.handler.class sasl.login.class sasl.login.connect.timeout.ms sasl.login.read.timeout.ms
sasl.login.refresh.buffer.seconds sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor
sasl.login.refresh.window.jitter sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms sasl.mechanism
sasl.oauthbearer.assertion sasl.oauthbearer.assertion.algorithm sasl.oauthbearer.assertion.claim.aud
sasl.oauthbearer.assertion.claim.exp.seconds sasl.oauthbearer.assertion.claim.iss
sasl.oauthbearer.assertion.claim.jti.include sasl.oauthbearer.assertion.claim.nbf.seconds
sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file sasl.oauthbearer.assertion.private.key.file
sasl.oauthbearer.assertion.private.key.passphrase sasl.oauthbearer.assertion.template.file
sasl.oauthbearer.client.credentials.client.id sasl.oauthbearer.client.credentials.client.secret
sasl.oauthbearer.clock.skew.seconds sasl.oauthbearer.expected.audience sasl.oauthbearer.expected.issuer
sasl.oauthbearer.header.urlencode sasl.oauthbearer.jwks.endpoint.refresh.ms
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.ms
sasl.oauthbearer.jwks.endpoint.url sasl.oauthbearer.jwt.retriever.class sasl.oauthbearer.jwt.validator.class
sasl.oauthbearer.scope sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name
sasl.oauthbearer.token.endpoint.url ssl.cipher.suites ssl.enabled.protocols ssl.endpoint.identification.algorithm
ssl.engine.factory.class ssl.key.password ssl.keymanager.algorithm ssl.keystore.certificate.chain ssl.keystore.key
ssl.keystore.location ssl.keystore.password ssl.keystore.type ssl.protocol ssl.provider
ssl.secure.random.implementation ssl.trustmanager.algorithm ssl.truststore.certificates ssl.truststore.location
ssl.truststore.password ssl.truststore.type
"""
"""SaslConfigs and SslConfigs of Apache Kafka 4.3.1, as far as they are a client's."""


def test_every_option_of_kafkas_producer_is_known_or_rejected_with_advice() -> None:
    names = [name.replace(".", "_") for name in f"{KAFKAS} {SECURITY}".split()]
    assert [name for name in names if name not in PRODUCER and not advice_for_unsupported(name)] == []


@pytest.mark.parametrize("given", [{"acks": 1}, {"retries": 0}])
def test_idempotence_is_disabled_by_conflicts_unless_it_is_explicit(given: dict[str, Any]) -> None:
    assert producer_options(None, {**B, **given})["enable_idempotence"] is False


@pytest.mark.parametrize("given", [{}, {"acks": 1}])
def test_six_requests_in_flight_are_rejected_unless_idempotence_is_off(given: dict[str, Any]) -> None:
    """As Apache Kafka's producer does since 4.0."""
    given = {**B, **given, "max_in_flight_requests_per_connection": 6}
    with pytest.raises(ConfigError, match=r"max_in_flight_requests_per_connection = 5 or less, but .* = 6"):
        producer_options(None, given)
    assert producer_options(None, {**given, "enable_idempotence": False})["enable_idempotence"] is False


def test_consumer_options() -> None:
    assert consumer_options(None, B)["enable_auto_commit"] is False, "nothing to commit without a group"
    for given, word in (
        ({"group_instance_id": "x"}, "group_id"),
        ({"group_id": "g", "session_timeout_ms": 3_000}, "heartbeat_interval_ms"),
        ({"isolation_level": "serializable"}, "read_committed"),
    ):
        with pytest.raises(ConfigError, match=word):
            consumer_options(None, {**B, **given})
    with pytest.raises(ConfigError, match="bootstrap_servers"):
        consumer_options(None, {})


def test_every_default_is_a_valid_value() -> None:
    for table in (PRODUCER, CONSUMER):
        for name, option in table.items():
            spelled = option.default.name.lower() if isinstance(option.default, Codec) else option.default
            assert option.read(spelled) == option.default, name


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("key.deserializer", "(data, context) -> object"),
        ("value.serializer", "consumers key_deserializer"),
        ("interceptor.classes", "wrap send() or poll()"),
        ("consumer_timeout_ms", "poll()"),
        ("sasl_plain_username", "set sasl_username"),
        ("sasl.login.callback.handler.class", "sasl_oauth_token_provider"),
        ("sasl.oauthbearer.expected.audience", "only the broker"),
        ("ssl.cipher.suites", "ssl_context"),
        ("sasl.kerberos.service.name", "Kerberos"),
        ("metric.reporters", "omit the option"),
        ("share.acquire.mode", "KIP-932"),
    ],
)
def test_options_of_other_clients_are_rejected_with_advice(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=name) as caught:
        consumer_options({name: "x"}, B)
    assert words in str(caught.value)


JAVAS = """
    group.id group.instance.id max.poll.records max.poll.interval.ms session.timeout.ms heartbeat.interval.ms
    group.protocol group.remote.assignor bootstrap.servers client.dns.lookup enable.auto.commit
    auto.commit.interval.ms partition.assignment.strategy auto.offset.reset fetch.min.bytes fetch.max.bytes
    fetch.max.wait.ms metadata.max.age.ms max.partition.fetch.bytes send.buffer.bytes receive.buffer.bytes client.id
    client.rack reconnect.backoff.ms reconnect.backoff.max.ms retry.backoff.ms enable.metrics.push
    retry.backoff.max.ms metrics.sample.window.ms metrics.num.samples metrics.recording.level metric.reporters
    check.crcs key.deserializer value.deserializer socket.connection.setup.timeout.ms
    socket.connection.setup.timeout.max.ms connections.max.idle.ms request.timeout.ms default.api.timeout.ms
    interceptor.classes exclude.internal.topics isolation.level allow.auto.create.topics security.providers
    security.protocol metadata.recovery.strategy metadata.recovery.rebootstrap.trigger.ms config.providers
    share.acknowledgement.mode share.acquire.mode
"""


def test_every_option_of_javas_consumer_is_known_or_rejected_with_advice() -> None:
    """ConsumerConfig of Apache Kafka 4.3.1."""
    names = {name.replace(".", "_") for name in JAVAS.split()}
    assert {name for name in names - set(CONSUMER) if not advice_for_unsupported(name)} == set()
    assert not set(OTHER_OPTIONS) & (set(CONSUMER) | set(PRODUCER))


LIBRDKAFKAS = """
acks allow.auto.create.topics api.version.fallback.ms api.version.request api.version.request.timeout.ms
auto.commit.enable auto.commit.interval.ms auto.offset.reset background_event_cb batch.num.messages batch.size
bootstrap.servers broker.address.family broker.address.ttl broker.version.fallback builtin.features check.crcs
client.dns.lookup client.id client.rack closesocket_cb compression.codec compression.level compression.type connect_cb
connections.max.idle.ms consume.callback.max.messages consume_cb coordinator.query.interval.ms debug
default_topic_conf delivery.report.only.error delivery.timeout.ms dr_cb dr_msg_cb enable.auto.commit
enable.auto.offset.store enable.gapless.guarantee enable.idempotence enable.metrics.push enable.partition.eof
enable.random.seed enable.sasl.oauthbearer.unsecure.jwt enable.ssl.certificate.verification enabled_events error_cb
fetch.error.backoff.ms fetch.max.bytes fetch.message.max.bytes fetch.min.bytes fetch.queue.backoff.ms
fetch.wait.max.ms group.id group.instance.id group.protocol group.protocol.type group.remote.assignor
heartbeat.interval.ms https.ca.location https.ca.pem interceptors internal.termination.signal isolation.level
linger.ms log.connection.close log.queue log.thread.name log_cb log_level max.in.flight
max.in.flight.requests.per.connection max.partition.fetch.bytes max.poll.interval.ms message.copy.max.bytes
message.max.bytes message.send.max.retries message.timeout.ms metadata.broker.list metadata.max.age.ms
metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy msg_order_cmp oauthbearer_token_refresh_cb
offset.store.method offset.store.path offset.store.sync.interval.ms offset_commit_cb opaque open_cb
partition.assignment.strategy partitioner partitioner_cb plugin.library.paths produce.offset.report
queue.buffering.backpressure.threshold queue.buffering.max.kbytes queue.buffering.max.messages queue.buffering.max.ms
queued.max.messages.kbytes queued.min.messages queuing.strategy rebalance_cb receive.message.max.bytes
reconnect.backoff.jitter.ms reconnect.backoff.max.ms reconnect.backoff.ms request.required.acks request.timeout.ms
resolve_cb retries retry.backoff.max.ms retry.backoff.ms sasl.kerberos.keytab sasl.kerberos.kinit.cmd
sasl.kerberos.min.time.before.relogin sasl.kerberos.principal sasl.kerberos.service.name sasl.mechanism
sasl.mechanisms sasl.oauthbearer.assertion.algorithm sasl.oauthbearer.assertion.claim.aud
sasl.oauthbearer.assertion.claim.exp.seconds sasl.oauthbearer.assertion.claim.iss
sasl.oauthbearer.assertion.claim.jti.include sasl.oauthbearer.assertion.claim.nbf.seconds
sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file sasl.oauthbearer.assertion.jwt.template.file
sasl.oauthbearer.assertion.private.key.file sasl.oauthbearer.assertion.private.key.passphrase
sasl.oauthbearer.assertion.private.key.pem sasl.oauthbearer.client.credentials.client.id
sasl.oauthbearer.client.credentials.client.secret sasl.oauthbearer.client.id sasl.oauthbearer.client.secret
sasl.oauthbearer.config sasl.oauthbearer.extensions sasl.oauthbearer.grant.type
sasl.oauthbearer.metadata.authentication.type sasl.oauthbearer.method sasl.oauthbearer.scope
sasl.oauthbearer.token.endpoint.url sasl.password sasl.username security.protocol session.timeout.ms
socket.blocking.max.ms socket.connection.setup.timeout.ms socket.keepalive.enable socket.max.fails
socket.nagle.disable socket.receive.buffer.bytes socket.send.buffer.bytes socket.timeout.ms socket_cb
ssl.ca.certificate.stores
ssl.ca.location ssl.ca.pem ssl.certificate.location ssl.certificate.pem ssl.certificate.verify_cb ssl.cipher.suites
ssl.crl.location ssl.curves.list ssl.endpoint.identification.algorithm ssl.engine.id ssl.engine.location
ssl.key.location ssl.key.password ssl.key.pem ssl.keystore.location ssl.keystore.password ssl.providers
ssl.sigalgs.list ssl_ca ssl_certificate ssl_engine_callback_data ssl_key sticky.partitioning.linger.ms throttle_cb
topic.blacklist topic.metadata.propagation.max.ms topic.metadata.refresh.fast.cnt
topic.metadata.refresh.fast.interval.ms topic.metadata.refresh.interval.ms topic.metadata.refresh.sparse
transaction.timeout.ms transactional.id
"""
"""CONFIGURATION.md of librdkafka, without the options of statistics."""


def test_every_option_of_librdkafka_is_known_or_rejected_with_advice() -> None:
    known = PRODUCER.keys() | CONSUMER.keys()
    aliases = {name: each.name for name, each in OTHER_OPTIONS.items() if isinstance(each, Alias)}
    assert set(aliases.values()) <= known
    names = {name.replace(".", "_") for name in LIBRDKAFKAS.split()}
    assert {name for name in names - known - aliases.keys() if not advice_for_unsupported(name)} == set()


def test_names_of_librdkafka_have_the_meaning_of_kafkas() -> None:
    given = {"metadata.broker.list": "localhost:9092", "queue.buffering.max.ms": "20", "request.required.acks": -1}
    options = producer_options({**given, "message.timeout.ms": 60_000, "compression.codec": "zstd"}, {})
    expected = {"bootstrap_servers": "localhost:9092", "linger_ms": 20, "acks": -1, "compression_type": Codec.ZSTD}
    assert {name: options[name] for name in expected} == expected
    assert options["delivery_timeout_ms"] == 60_000
    assert producer_options({"partitioner": "murmur2_random"}, B)["partitioner"] == "default"
    assert consumer_options({"fetch.wait.max.ms": 50}, B)["fetch_max_wait_ms"] == 50


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"linger.ms": 5, "queue.buffering.max.ms": 5}, "two names of one option"),
        ({"linger_ms": "soon"}, "linger_ms = 'soon': it must be a whole number"),
        ({"linger_ms": float("inf")}, "linger_ms = inf: it must be a whole number"),
        ({"queue.buffering.max.ms": 0.5}, "queue.buffering.max.ms = 0.5: it must be a whole number"),
        ({"queue.buffering.max.kbytes": 1024}, "queue.buffering.max.kbytes: buffer_memory .* in bytes"),
        ({"partitioner": "fnv1a_random"}, "partitioner = 'fnv1a_random': .*librdkafka.* a callable"),
        ({"socket.timeout.ms": 1}, "socket.timeout.ms: request_timeout_ms"),
        ({"fetch.wait.max.ms": 1}, "fetch.wait.max.ms: this client has no option fetch_max_wait_ms"),
    ],
)
def test_names_of_librdkafka_that_a_producer_rejects(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        producer_options(given, B)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"group_protocol": "consumer", "session_timeout_ms": 9_000}, ("session_timeout_ms", "= consumer")),
        ({"group_protocol": "consumer", "partition_assignment_strategy": "range"}, ("group_protocol = classic",)),
        ({"group_remote_assignor": "uniform"}, ("group_remote_assignor", "group_protocol = classic")),
        ({"group_protocol": "streams"}, ("classic, consumer",)),
        ({"partition_assignment_strategy": "mine"}, ("cooperative-sticky",)),
        ({"auto_offset_reset": "by_duration:1h"}, ("by_duration:1h", "PT1H")),
        ({"auto_offset_reset": "by_duration:-PT1H"}, ("PT1H",)),
        ({"auto_offset_reset": "first"}, ("by_duration",)),
        ({"security_protocol": "TLS"}, ("security_protocol", "SASL_SSL")),
    ],
)
def test_invalid_consumer_options(given: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        consumer_options(None, {**B, "group_id": "g", **given})
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    ("text", "ms"),
    [("PT1H30M", 5_400_000), ("P1DT0.25S", 86_400_250), ("pt5s", 5_000), ("P2D", 172_800_000), ("PT0S", 0)],
)
def test_durations(text: str, ms: int) -> None:
    assert milliseconds(text) == ms


@pytest.mark.parametrize("text", ["", "P", "PT", "P1DT", "1H", "PT1", "P1Y", "PT1H1H", "PT-1H"])
def test_invalid_durations(text: str) -> None:
    with pytest.raises(ValueError, match="ISO 8601"):
        milliseconds(text)


@pytest.mark.parametrize("make", [oncelog.Producer, oncelog.Consumer, oncelog.Admin, aio.Producer])
def test_second_argument_that_is_not_a_mapping_is_named_at_the_call(make: Callable[..., object]) -> None:
    with pytest.raises(ConfigError, match="config = 'words': it must be a mapping of options"):
        make("localhost:9092", "words")


def test_fetch_wait_is_shorter_than_the_request_timeout() -> None:
    assert consumer_options(None, {**B})["fetch_max_wait_ms"] == 500
    assert consumer_options(None, {**B, "request_timeout_ms": 400})["fetch_max_wait_ms"] == 200
    for wait_ms in (1_000, 1_001):
        with pytest.raises(ConfigError, match=f"fetch_max_wait_ms = {wait_ms} .*request_timeout_ms = 1000"):
            consumer_options(None, {**B, "request_timeout_ms": 1_000, "fetch_max_wait_ms": wait_ms})

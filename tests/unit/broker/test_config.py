"""Settings: Kafka's names, their sources, and the errors for invalid ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.broker.config.dynamic import DynamicConfig
from oncelog.broker.config.entries import ConfigSource, ConfigType, Synonym, describe_broker, describe_topic
from oncelog.broker.config.errors import ConfigError
from oncelog.broker.config.ignored_configs import NOT_SETTINGS, UNUSED, WITHOUT_EFFECT
from oncelog.broker.config.listeners import ListenerConfig
from oncelog.broker.config.setting_types import INT_MAX
from oncelog.broker.config.settings import BrokerConfig, keys, load, misspelled
from oncelog.broker.config.sources import environment_settings, set_option
from oncelog.broker.config.topics import TOPIC_KEYS, check_topic_configs, effective, log_config
from oncelog.net.properties import parse_properties
from oncelog.protocol.compression import Codec
from oncelog.protocol.errors import ErrorCode, ProtocolError


def test_values_have_their_types() -> None:
    config = load(
        {
            "num.partitions": " 3 ",
            "auto.create.topics.enable": "FALSE",
            "log.cleaner.min.cleanable.ratio": "0.25",
            "log.dirs": "/a, /b",
            "compression.type": "zstd",
        }
    )
    assert config.num_partitions == 3
    assert config.auto_create_topics_enable is False
    assert config.log_cleaner_min_cleanable_ratio == 0.25
    assert config.log_dirs == ("/a", "/b")
    assert config.compression_type == "zstd"
    assert config.warnings == ()


def test_defaults_without_settings() -> None:
    assert load({}) == BrokerConfig()
    assert load({}).group_initial_rebalance_delay_ms == 0


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("num.partitions", "many", "num.partitions must be a whole number, not 'many'"),
        ("num.partitions", "", "num.partitions must be a whole number, not ''"),
        ("num.partitions", "1.5", "num.partitions must be a whole number, not '1.5'"),
        ("num.partitions", "--1", "num.partitions must be a whole number, not '--1'"),
        ("num.partitions", "٣", "num.partitions must be a whole number, not '٣'"),
        ("num.partitions", "0", "num.partitions must be at least 1, not 0"),
        ("num.partitions", str(2**31), f"num.partitions must be at most {INT_MAX}, not {2**31}"),
        ("log.segment.bytes", "1000", "log.segment.bytes must be at least 1048576, not 1000"),
        ("log.retention.hours", "soon", "log.retention.hours must be a whole number, not 'soon'"),
        ("log.roll.hours", "0", "log.roll.hours must be at least 1, not 0"),
        ("auto.create.topics.enable", "yes", "auto.create.topics.enable must be true or false, not 'yes'"),
        ("log.cleaner.min.cleanable.ratio", "x", "log.cleaner.min.cleanable.ratio must be a number, not 'x'"),
        ("log.cleaner.min.cleanable.ratio", "nan", "log.cleaner.min.cleanable.ratio must be at least 0.0, not nan"),
        ("log.cleanup.policy", "keep", "log.cleanup.policy must be one of compact, delete, not 'keep'"),
        ("log.dirs", " , ", "log.dirs must name at least one directory"),
        ("listeners", "9092", "listeners must look like PLAINTEXT://HOST:PORT, not '9092'"),
        ("listeners", "PLAINTEXT://:99999", "listeners must look like PLAINTEXT://HOST:PORT, not 'PLAINTEXT://:99999'"),
        (
            "listeners",
            "SSL://h:1",
            "listener SSL needs ssl.keystore.location, or ssl.keystore.key and ssl.keystore.certificate.chain",
        ),
        (
            "listeners",
            "PLAINTEXT://h:1,X://h:2",
            "listeners names X, but listener.security.protocol.map has no protocol for it",
        ),
        (
            "listeners",
            "PLAINTEXT://h:1,plaintext://h:2",
            "listeners must give each listener its own name, "
            "but 'PLAINTEXT://h:1,plaintext://h:2' has PLAINTEXT more than once",
        ),
        (
            "advertised.listeners",
            "SSL://h:1",
            "advertised.listeners names SSL, which is not one of the listeners (PLAINTEXT)",
        ),
        (
            "advertised.listeners",
            "PLAINTEXT://0.0.0.0:1",
            "advertised.listeners must name a host that clients can reach, not 0.0.0.0",
        ),
        ("client.quota.callback.class", "x.Y", "client.quota.callback.class must be empty, not 'x.Y'"),
        ("quota.window.num", "0", "quota.window.num must be at least 1, not 0"),
        (
            "controller.listener.names",
            "PLAINTEXT",
            "listeners has no listener for clients: "
            "controller.listener.names contains all of 'PLAINTEXT://127.0.0.1:9092'",
        ),
        (
            "listener.security.protocol.map",
            "PLAINTEXT:SASL_SSL",
            "listener PLAINTEXT: sasl.enabled.mechanisms has GSSAPI, which is Kafka's default, but Kerberos is not "
            "supported; set it to some of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER",
        ),
    ],
)
def test_error_for_an_invalid_value_is_one_sentence_and_names_its_key(name: str, value: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load({name: value})
    assert str(caught.value) == sentence


@given(st.sampled_from(sorted(keys())), st.text(max_size=20))
def test_any_text_is_accepted_or_rejected_by_name(name: str, text: str) -> None:
    try:
        load({name: text})
    except ConfigError as error:
        assert name in str(error)  # noqa: PT017 - only some texts are rejected


def test_every_default_is_valid() -> None:
    shown = {entry.name: entry.value for entry in describe_broker(DynamicConfig(BrokerConfig()))}
    given_back = {name: value for name, value in shown.items() if value}
    assert load(given_back).given == given_back
    for name, key in keys().items():
        assert getattr(load(given_back), key.attribute) == key.default, name


def test_unknown_keys_are_named_with_the_nearest_known_one() -> None:
    config = load({"num.partition": "3", "num.io.threads": "8", "complete.nonsense.xyzzy": "1"})
    assert config.warnings == (
        "unknown setting num.partition, did you mean num.partitions?",
        "num.io.threads has no effect in oncelog",
        "unknown setting complete.nonsense.xyzzy",
    )
    assert config.num_partitions == 1


def test_only_typing_mistakes_are_misspelled_settings() -> None:
    assert misspelled("min.insync.replica") == "min.insync.replicas"
    assert misspelled("retention.ms") == "log.retention.ms"  # that of a topic
    right = {*keys(), *WITHOUT_EFFECT, "log.retention.hours", "listener.name.internal.ssl.key.password"}
    assert not {name for name in right | {"my.plugin.url", "complete.nonsense.xyzzy"} if misspelled(name)}


def test_no_key_is_both_known_and_without_effect() -> None:
    assert not WITHOUT_EFFECT & set(keys())


def test_keys_without_use_on_one_broker_are_checked_and_logged() -> None:
    assert set(keys()) >= UNUSED
    name = "log.flush.start.offset.checkpoint.interval.ms"
    assert load({name: "5"}).warnings == (f"{name} has no effect in oncelog",)
    with pytest.raises(ConfigError, match=r"transaction\.state\.log\.min\.isr must be at least 1"):
        load({"transaction.state.log.min.isr": "0"})


def test_kafkas_synonyms() -> None:
    assert load({"log.retention.hours": "2"}).log_retention_ms == 7_200_000
    assert load({"log.retention.hours": "2", "log.retention.minutes": "1"}).log_retention_ms == 60_000
    assert load({"log.retention.ms": "5", "log.retention.minutes": "1"}).log_retention_ms == 5
    assert load({"log.retention.hours": "-1"}).log_retention_ms == -1
    assert load({"log.roll.hours": "1"}).log_roll_ms == 3_600_000
    assert load({"broker.id": "7"}).node_id == 7
    assert load({"broker.id": "7", "node.id": "8"}).node_id == 8
    assert load({"log.dir": "/a"}).log_dirs == ("/a",)
    assert load({"log.dir": "/a", "log.dirs": "/b"}).log_dirs == ("/b",)


def test_listeners() -> None:
    config = load({"listeners": "PLAINTEXT://0.0.0.0:9095", "advertised.listeners": "PLAINTEXT://kafka.example:19095"})
    expected = ListenerConfig("PLAINTEXT", "PLAINTEXT", "0.0.0.0", 9095, "kafka.example", 19095)
    assert config.client_listeners == (expected,)
    assert load({"listeners": "PLAINTEXT://[::1]:9092"}).client_listeners[0].host == "::1"
    assert load({"listeners": "PLAINTEXT://:9092"}).client_listeners[0].host == ""


def test_several_listeners() -> None:
    """Kafka compares names in upper case. A listener that is not advertised has its own address."""
    config = load(
        {
            "listeners": "inner://:0,OUTER://h:9093",
            "advertised.listeners": "OUTER://kafka.example:1",
            "listener.security.protocol.map": "INNER:PLAINTEXT, outer:plaintext",
        }
    )
    assert config.client_listeners == (
        ListenerConfig("INNER", "PLAINTEXT", "", 0),
        ListenerConfig("OUTER", "PLAINTEXT", "h", 9093, "kafka.example", 1),
    )


@pytest.mark.parametrize(
    ("first", "second", "both"),
    [
        ("h:1", "h:1", False),
        ("127.0.0.1:1", "127.0.0.2:1", False),
        ("[::1]:1", "[::2]:1", False),
        ("h:1", "[::1]:1", False),
        ("127.0.0.1:1", "[::1]:1", True),
        ("h:0", "h:0", True),
        ("h:1", "h:2", True),
    ],
)
def test_two_listeners_on_one_port(first: str, second: str, both: bool) -> None:
    """Kafka allows one port twice only for an IPv4 address and an IPv6 address."""
    text = f"PLAINTEXT://{first},OUTER://{second}"
    settings = {"listeners": text, "listener.security.protocol.map": "OUTER:PLAINTEXT"}
    if both:
        assert [listener.name for listener in load(settings).client_listeners] == ["PLAINTEXT", "OUTER"]
    else:
        with pytest.raises(ConfigError) as caught:
            load(settings)
        assert str(caught.value) == f"listeners must give each listener its own port, but {text!r} has 1 more than once"


def test_listeners_of_a_kraft_file() -> None:
    config = load(
        {
            "listeners": "CLIENTS://:9092,CONTROLLER://:9093",
            "advertised.listeners": "CLIENTS://localhost:9092,CONTROLLER://localhost:9093",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CLIENTS:PLAINTEXT,CONTROLLER:PLAINTEXT",
        }
    )
    assert config.client_listeners == (ListenerConfig("CLIENTS", "PLAINTEXT", "", 9092, "localhost", 9092),)


def test_environment_variables_follow_the_rule_of_kafkas_images() -> None:
    environment = {
        "KAFKA_NUM_PARTITIONS": "4",
        "KAFKA_A__B_C___D": "x",
        "KAFKA_HEAP_OPTS": "-Xmx1g",
        "PATH": "/bin",
        "KAFKAESQUE": "no",
    }
    assert environment_settings(environment) == {"num.partitions": "4", "a_b.c-d": "x"}
    assert environment_settings(dict.fromkeys(NOT_SETTINGS, "x")) == {}


def test_set_option() -> None:
    assert set_option("a.b = c=d") == ("a.b", "c=d")
    assert set_option("a=") == ("a", "")
    for wrong in ("a", "=b", ""):
        with pytest.raises(ConfigError, match="--set takes KEY=VALUE"):
            set_option(wrong)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b", {"a": "b"}),
        ("  a  =  b c  ", {"a": "b c  "}),
        ("a:b\na2 b2", {"a": "b", "a2": "b2"}),
        ("# a=b\n! c=d\n\n", {}),
        ("a=b\\\n    c\\\n  d", {"a": "bcd"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        ("a\\=b=c\\=d", {"a=b": "c=d"}),
        ("a=\\u00e9\\t\\x", {"a": "é\tx"}),
        ("a", {"a": ""}),
        ("a=1\r\na=2\r", {"a": "2"}),
        ("a=b\\\n# not a comment", {"a": "b# not a comment"}),
    ],
)
def test_properties_files_as_java_reads_them(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected


@given(st.text())
def test_any_text_is_a_properties_file(text: str) -> None:
    assert isinstance(parse_properties(text), dict)


# -- topics -----------------------------------------------------------------------------------------------------------


def test_settings_of_a_topic_are_checked() -> None:
    settings = {"retention.ms": " 05 ", "cleanup.policy": "compact, delete", "preallocate": "TRUE"}
    assert check_topic_configs(BrokerConfig(), settings) == {
        "retention.ms": "5",
        "cleanup.policy": "compact,delete",
        "preallocate": "true",
    }


def test_settings_of_a_topic_must_be_consistent_with_the_brokers() -> None:
    broker = load({"log.cleaner.max.compaction.lag.ms": "5"})
    with pytest.raises(ProtocolError, match=r"min.compaction.lag.ms \(6\) must not be above max.* \(5\)"):
        check_topic_configs(broker, {"min.compaction.lag.ms": "6"})


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ({"retention.mss": "1"}, "unknown topic setting 'retention.mss', did you mean retention.ms?"),
        ({"retention.ms": None}, "topic setting retention.ms needs a value"),
        ({"retention.ms": "-2"}, "retention.ms must be at least -1, not -2"),
        ({"segment.bytes": "1000"}, "segment.bytes must be at least 1048576, not 1000"),
        (
            {"compression.type": "none"},
            "compression.type must be one of uncompressed, zstd, lz4, snappy, gzip, producer, not 'none'",
        ),
        ({"cleanup.policy": "compact,compact"}, "cleanup.policy must be one of compact, delete, not 'compact,compact'"),
        (
            {"compression.gzip.level": "0"},
            "compression.gzip.level must be 1 to 9, or -1 for zlib's default level, not 0",
        ),
        ({"compression.lz4.level": "18"}, "compression.lz4.level must be at most 17, not 18"),
        (
            {"min.compaction.lag.ms": "2", "max.compaction.lag.ms": "1"},
            "min.compaction.lag.ms (2) must not be above max.compaction.lag.ms (1)",
        ),
    ],
)
def test_invalid_topic_setting_is_invalid_config(configs: dict[str, str | None], message: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        check_topic_configs(BrokerConfig(), configs)
    assert caught.value.code == ErrorCode.INVALID_CONFIG
    assert message in str(caught.value)


def test_log_uses_the_topics_settings_then_the_brokers() -> None:
    broker = load({"log.retention.hours": "1", "compression.type": "lz4", "producer.id.expiration.ms": "77"})
    plain = log_config(broker, {})
    assert (plain.retention_ms, plain.compression, plain.producer_id_expiration_ms) == (3_600_000, Codec.LZ4, 77)
    own = log_config(broker, {"retention.ms": "9", "compression.type": "producer", "internal.segment.bytes": "100"})
    assert (own.retention_ms, own.compression, own.segment_bytes) == (9, None, 100)
    assert not own.full_record_validation
    assert log_config(load({"record.validation": "full"}), {}).full_record_validation
    assert effective(broker, {}, "retention.ms") == "3600000"
    assert effective(broker, {"retention.ms": "9"}, "retention.ms") == "9"


def test_source_of_a_topic_setting() -> None:
    broker = load({"log.retention.hours": "1"})
    entries = {entry.name: entry for entry in describe_topic(DynamicConfig(broker), {"segment.ms": "60000"})}
    assert set(entries) == set(TOPIC_KEYS)
    assert entries["retention.ms"].source == ConfigSource.STATIC_BROKER
    assert entries["retention.ms"].synonyms == (
        Synonym("log.retention.hours", "1", ConfigSource.STATIC_BROKER),
        Synonym("log.retention.ms", "604800000", ConfigSource.DEFAULT),
    )
    assert entries["segment.ms"].value == "60000"
    assert [synonym.source for synonym in entries["segment.ms"].synonyms] == [ConfigSource.TOPIC, ConfigSource.DEFAULT]
    assert entries["max.message.bytes"].source == ConfigSource.DEFAULT


@pytest.mark.parametrize(
    ("given", "key", "value", "first"),
    [
        ({"advertised.listeners": "PLAINTEXT://here:1"}, "advertised.listeners", "PLAINTEXT://here:1", None),
        ({"advertised.listeners": ""}, "advertised.listeners", "", None),
        ({"log.dir": "/a"}, "log.dirs", "/a", ("log.dir", "/a")),
        ({"broker.id": "7"}, "node.id", "7", ("broker.id", "7")),
        ({"node.id": "7", "broker.id": "7"}, "node.id", "7", None),
        ({"log.roll.jitter.hours": "1"}, "log.roll.jitter.ms", "3600000", ("log.roll.jitter.hours", "1")),
        ({"log.retention.hours": "-5"}, "log.retention.ms", "-1", ("log.retention.hours", "-5")),
    ],
)
def test_given_value_is_returned_as_given(
    given: dict[str, str], key: str, value: str, first: tuple[str, str] | None
) -> None:
    [entry] = [entry for entry in describe_broker(DynamicConfig(load(given))) if entry.name == key]
    assert (entry.value, entry.source) == (value, ConfigSource.STATIC_BROKER)
    assert (entry.synonyms[0].name, entry.synonyms[0].value) == (first or (key, value))


def test_types_of_settings_equal_kafkas() -> None:
    types = {entry.name: entry.type for entry in describe_topic(DynamicConfig(BrokerConfig()), {})}
    assert types["retention.ms"] == ConfigType.LONG
    assert types["segment.bytes"] == ConfigType.INT
    assert types["cleanup.policy"] == ConfigType.LIST
    assert types["preallocate"] == ConfigType.BOOLEAN
    assert types["min.cleanable.dirty.ratio"] == ConfigType.DOUBLE
    assert types["compression.type"] == ConfigType.STRING
    broker = {entry.name: entry.type for entry in describe_broker(DynamicConfig(BrokerConfig()))}
    assert broker["offsets.topic.replication.factor"] == ConfigType.SHORT
    assert broker["log.dirs"] == ConfigType.LIST

"""The options of other Kafka clients that these clients lack: the name here, or what to do instead.

Sources: ProducerConfig, ConsumerConfig, SaslConfigs and SslConfigs of Kafka's Java clients; CONFIGURATION.md of
librdkafka; the arguments of aiokafka and kafka-python.
"""

from __future__ import annotations

from typing import NamedTuple

JAVA = "Kafka's Java clients"
LIBRDKAFKA = "librdkafka"
PYTHON = "aiokafka or kafka-python"


class Alias(NamedTuple):
    """Another name of an option, with the same meaning and unit."""

    name: str
    source: str


class Advice(NamedTuple):
    """What to do instead of an option."""

    text: str
    source: str


_ASSERTION = "assertions are not supported; get the token in sasl_oauth_token_provider"
_INTERCEPTORS = "interceptors are not supported; wrap send() or poll() in your own function"
_ONLY_BROKERS = "only the broker validates tokens; omit the option"
_OWN_CONTEXT = "pass an ssl.SSLContext of your own as ssl_context"

_LIBRDKAFKA_NAMES = {
    "compression_codec": "compression_type",
    "fetch_message_max_bytes": "max_partition_fetch_bytes",
    "fetch_wait_max_ms": "fetch_max_wait_ms",
    "max_in_flight": "max_in_flight_requests_per_connection",
    "message_max_bytes": "max_request_size",
    "message_send_max_retries": "retries",
    "message_timeout_ms": "delivery_timeout_ms",
    "metadata_broker_list": "bootstrap_servers",
    "queue_buffering_max_ms": "linger_ms",
    "request_required_acks": "acks",
    "sasl_mechanisms": "sasl_mechanism",
    "sasl_oauthbearer_client_id": "sasl_oauthbearer_client_credentials_client_id",
    "sasl_oauthbearer_client_secret": "sasl_oauthbearer_client_credentials_client_secret",
    "ssl_ca_location": "ssl_truststore_location",
    "ssl_ca_pem": "ssl_truststore_certificates",
    "ssl_certificate_pem": "ssl_keystore_certificate_chain",
    "ssl_key_pem": "ssl_keystore_key",
    "stats_cb": "on_statistics",
    "topic_metadata_refresh_interval_ms": "metadata_max_age_ms",
}
"""Name of librdkafka -> the name here."""

_ADVICE: dict[str, dict[str, str]] = {
    LIBRDKAFKA: {
        "this client needs no such option; omit it": (
            "api_version_fallback_ms api_version_request api_version_request_timeout_ms broker_version_fallback "
            "builtin_features consume_callback_max_messages coordinator_query_interval_ms enable_random_seed "
            "group_protocol_type internal_termination_signal message_copy_max_bytes msg_order_cmp opaque "
            "plugin_library_paths produce_offset_report queue_buffering_backpressure_threshold queuing_strategy "
            "reconnect_backoff_jitter_ms socket_blocking_max_ms socket_max_fails topic_metadata_refresh_fast_cnt "
            "topic_metadata_refresh_sparse"
        ),
        "set enable_auto_commit": "auto_commit_enable",
        "this client has no such callback; omit the option": "background_event_cb enabled_events throttle_cb",
        "batch_size limits a batch, in bytes; set that option": "batch_num_messages",
        "Python opens the sockets; omit the option": (
            "broker_address_family broker_address_ttl closesocket_cb connect_cb open_cb resolve_cb socket_cb "
            "socket_keepalive_enable socket_nagle_disable socket_receive_buffer_bytes socket_send_buffer_bytes"
        ),
        "call poll(), or write a loop over the consumer": "consume_cb",
        "configure the loggers of oncelog with Python's logging": (
            "debug log_cb log_connection_close log_level log_queue log_thread_name"
        ),
        "set the options of topics as options of the client": "default_topic_conf",
        "pass on_delivery to send(), or call result() of the future that it returns": (
            "delivery_report_only_error dr_cb dr_msg_cb on_delivery"
        ),
        (
            "auto-commit commits the positions after the records that poll() has returned; to choose the offsets, set "
            "enable_auto_commit = false and call commit({(topic, partition): offset})"
        ): "enable_auto_offset_store",
        "use transactions, which write all of their records or none": "enable_gapless_guarantee",
        "lag() and end_offsets() return where partitions end; omit the option": "enable_partition_eof",
        "use sasl_oauth_token_provider": (
            "enable_sasl_oauthbearer_unsecure_jwt oauthbearer_token_refresh_cb sasl_oauthbearer_config"
        ),
        _OWN_CONTEXT: (
            "enable_ssl_certificate_verification ssl_ca_certificate_stores ssl_certificate_verify_cb ssl_crl_location "
            "ssl_curves_list ssl_engine_callback_data ssl_engine_id ssl_engine_location ssl_providers ssl_sigalgs_list"
        ),
        "calls raise errors, and futures have the errors of records; omit the option": "error_cb",
        "retry_backoff_ms is the pause before a retry; set that option": (
            "fetch_error_backoff_ms topic_metadata_refresh_fast_interval_ms"
        ),
        "fetch_max_bytes and max_partition_fetch_bytes limit the responses to fetches; set these options": (
            "fetch_queue_backoff_ms queued_max_messages_kbytes queued_min_messages receive_message_max_bytes"
        ),
        "write the certificates to a file, and set https_ca_location": "https_ca_pem",
        _INTERCEPTORS: "interceptors",
        "use sasl_oauth_token_provider, which takes no argument": "oauth_cb",
        "commit() raises the error of a commit, and commit_async() returns a future; omit the option": (
            "offset_commit_cb"
        ),
        "the group's coordinator stores offsets; omit the option": (
            "offset_store_method offset_store_path offset_store_sync_interval_ms"
        ),
        "set partitioner to a callable (topic, key, value, partitions) -> partition": "partitioner_cb",
        "buffer_memory limits the buffer, in bytes; set that option": (
            "queue_buffering_max_kbytes queue_buffering_max_messages"
        ),
        "pass on_assigned, on_revoked and on_lost to subscribe()": "rebalance_cb",
        "only client credentials are supported; for any other way, get the token in sasl_oauth_token_provider": (
            "sasl_oauthbearer_grant_type sasl_oauthbearer_metadata_authentication_type"
        ),
        "set sasl_oauthbearer_token_endpoint_url, or sasl_oauth_token_provider; omit the option": (
            "sasl_oauthbearer_method"
        ),
        "request_timeout_ms is how long to wait for a response; set that option": "socket_timeout_ms",
        "set ssl_ca_location or ssl_ca_pem": "ssl_ca",
        "set ssl_certificate_location or ssl_certificate_pem": "ssl_certificate",
        "set ssl_key_location or ssl_key_pem": "ssl_key",
        "without a key, a partition gets records until it has batch_size bytes; omit it": (
            "sticky_partitioning_linger_ms"
        ),
        "subscribe to a pattern that does not match these topics": "topic_blacklist",
        "max_block_ms limits how long send() waits for a new topic; set that option": (
            "topic_metadata_propagation_max_ms"
        ),
    },
    JAVA: {
        "the client tries all addresses of a host name; omit the option": "client_dns_lookup",
        "config providers are not supported; read the values in Python": "config_providers",
        "the client sends no metrics to brokers (KIP-714); read metrics()": "enable_metrics_push",
        _INTERCEPTORS: "interceptor_classes",
        "the client tries bootstrap_servers if no known broker answers; omit the option": (
            "metadata_recovery_rebootstrap_trigger_ms metadata_recovery_strategy"
        ),
        "read metrics(), or set on_statistics and statistics_interval_ms; omit the option": "metric_reporters",
        "metrics() covers the last 30 to 60 seconds at full detail; omit the option": (
            "metrics_num_samples metrics_recording_level metrics_sample_window_ms"
        ),
        "use partitioner = round_robin, or a callable (topic, key, value, partitions) -> partition": (
            "partitioner_class"
        ),
        "the operating system sizes the socket buffers; omit the option": "receive_buffer_bytes send_buffer_bytes",
        "it names a Java class; use sasl_oauth_token_provider, or the options of the token endpoint": (
            "sasl_client_callback_handler_class sasl_login_class sasl_oauthbearer_jwt_retriever_class "
            "sasl_oauthbearer_jwt_validator_class"
        ),
        "sasl_login_read_timeout_ms covers the connection, too": "sasl_login_connect_timeout_ms",
        "the first login after 80 % of a token's life lets the client get a new one; omit the option": (
            "sasl_login_refresh_buffer_seconds sasl_login_refresh_min_period_seconds sasl_login_refresh_window_factor "
            "sasl_login_refresh_window_jitter"
        ),
        "reconnect_backoff_ms and reconnect_backoff_max_ms apply to the token endpoint, too; omit the option": (
            "sasl_login_retry_backoff_max_ms sasl_login_retry_backoff_ms"
        ),
        _ASSERTION: "sasl_oauthbearer_assertion",
        _ONLY_BROKERS: (
            "sasl_oauthbearer_clock_skew_seconds sasl_oauthbearer_expected_audience sasl_oauthbearer_expected_issuer "
            "sasl_oauthbearer_scope_claim_name sasl_oauthbearer_sub_claim_name"
        ),
        "it names Java classes; omit the option": "security_providers",
        "share groups (KIP-932) are not supported yet; omit the option": (
            "share_acknowledgement_mode share_acquire_mode"
        ),
        "socket_connection_setup_timeout_ms limits each attempt; omit the option": (
            "socket_connection_setup_timeout_max_ms"
        ),
        _OWN_CONTEXT: (
            "ssl_cipher_suites ssl_engine_factory_class ssl_keymanager_algorithm ssl_protocol ssl_provider "
            "ssl_trustmanager_algorithm"
        ),
        "only the broker requires certificates of its clients; omit the option": "ssl_client_auth",
        "Python's ssl has its own random numbers; omit the option": "ssl_secure_random_implementation",
    },
    PYTHON: {
        "the client negotiates the version of each request with each broker; omit the option": "api_version",
        "pass a timeout to poll(); omit the option": "consumer_timeout_ms",
        "a client of oncelog.aio uses the running event loop; omit the option": "loop",
        "set batch_size": "max_batch_size",
        "a consumer's rebalance timeout is max_poll_interval_ms; set that option": "rebalance_timeout_ms",
        "set sasl_password": "sasl_plain_password",
        "set sasl_username": "sasl_plain_username",
    },
}
"""Other client -> what to do instead of some of its options -> their names, with spaces between them."""

OTHER_OPTIONS: dict[str, Alias | Advice] = {
    **{other: Alias(name, LIBRDKAFKA) for other, name in _LIBRDKAFKA_NAMES.items()},
    **{
        name: Advice(text, source)
        for source, instead in _ADVICE.items()
        for text, names in instead.items()
        for name in names.split()
    },
}
"""Option of another client, with `_` for `.` -> what it is here."""

OTHER_PREFIXES = {
    "sasl_kerberos_": Advice("Kerberos (GSSAPI) is not supported; use SCRAM-SHA-512 or OAUTHBEARER", JAVA),
    "sasl_oauthbearer_assertion_": Advice(_ASSERTION, JAVA),
    "sasl_oauthbearer_jwks_endpoint_": Advice(_ONLY_BROKERS, JAVA),
}
"""How names of further options begin -> what to do instead."""


def alias_of(name: str) -> Alias | None:
    """Return which option here has another client's name. Return None for any other name."""
    found = OTHER_OPTIONS.get(name)
    return found if isinstance(found, Alias) else None


def advice_for_unsupported(name: str) -> str | None:
    """Return what to do instead of an option that only other Kafka clients have. Return None for any other name."""
    found = OTHER_OPTIONS.get(name)
    if found is None:
        found = next((advice for prefix, advice in OTHER_PREFIXES.items() if name.startswith(prefix)), None)
    return found.text if isinstance(found, Advice) else None

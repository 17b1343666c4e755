"""Names of librdkafka's options that Kafka's clients do not have: the name here, or what to do instead.

Source: CONFIGURATION.md of librdkafka. `security.options` has the names of TLS and logins.
"""

from __future__ import annotations

ALIASES = {
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
    "topic_metadata_refresh_interval_ms": "metadata_max_age_ms",
}
"""librdkafka's name -> the name here, with the same meaning and unit."""

_FETCHED_AHEAD = "fetch_max_bytes and max_partition_fetch_bytes limit the responses to fetches; set these options"
_GROUP_STORES = "the group's coordinator stores offsets; omit the option"
_LOGGING = "configure the loggers of oncelog with Python's logging"
_NO_CALLBACK = "this client has no such callback; omit the option"
_OBSOLETE = "this client needs no such option; omit it"
_ON_DELIVERY = "pass on_delivery to send(), or call result() of the future that it returns"
_SOCKETS = "Python opens the sockets; omit the option"

UNSUPPORTED: dict[str, str] = {
    **dict.fromkeys(("debug", "log_cb", "log_connection_close", "log_level", "log_queue", "log_thread_name"), _LOGGING),
    **dict.fromkeys(("delivery_report_only_error", "dr_cb", "dr_msg_cb"), _ON_DELIVERY),
    **dict.fromkeys(("background_event_cb", "enabled_events", "throttle_cb"), _NO_CALLBACK),
    **dict.fromkeys(
        (
            "api_version_fallback_ms",
            "api_version_request",
            "api_version_request_timeout_ms",
            "broker_version_fallback",
            "builtin_features",
            "consume_callback_max_messages",
            "coordinator_query_interval_ms",
            "enable_random_seed",
            "group_protocol_type",
            "internal_termination_signal",
            "message_copy_max_bytes",
            "msg_order_cmp",
            "opaque",
            "plugin_library_paths",
            "produce_offset_report",
            "queue_buffering_backpressure_threshold",
            "queuing_strategy",
            "reconnect_backoff_jitter_ms",
            "socket_blocking_max_ms",
            "socket_max_fails",
            "topic_metadata_refresh_fast_cnt",
            "topic_metadata_refresh_sparse",
        ),
        _OBSOLETE,
    ),
    **dict.fromkeys(
        (
            "broker_address_family",
            "broker_address_ttl",
            "closesocket_cb",
            "connect_cb",
            "open_cb",
            "resolve_cb",
            "socket_cb",
            "socket_keepalive_enable",
            "socket_nagle_disable",
            "socket_receive_buffer_bytes",
            "socket_send_buffer_bytes",
        ),
        _SOCKETS,
    ),
    **dict.fromkeys(
        (
            "fetch_queue_backoff_ms",
            "queued_max_messages_kbytes",
            "queued_min_messages",
            "receive_message_max_bytes",
        ),
        _FETCHED_AHEAD,
    ),
    **dict.fromkeys(("offset_store_method", "offset_store_path", "offset_store_sync_interval_ms"), _GROUP_STORES),
    **dict.fromkeys(
        ("fetch_error_backoff_ms", "topic_metadata_refresh_fast_interval_ms"),
        "retry_backoff_ms is the pause before a retry; set that option",
    ),
    "auto_commit_enable": "set enable_auto_commit",
    "batch_num_messages": "batch_size limits a batch, in bytes; set that option",
    "consume_cb": "call poll(), or write a loop over the consumer",
    "default_topic_conf": "set the options of topics as options of the client",
    "enable_auto_offset_store": (
        "auto-commit commits the positions after the records that poll() has returned; to choose the offsets, set "
        "enable_auto_commit = false and call commit({(topic, partition): offset})"
    ),
    "enable_gapless_guarantee": "use transactions, which write all of their records or none",
    "enable_partition_eof": "lag() and end_offsets() return where partitions end; omit the option",
    "error_cb": "calls raise errors, and futures have the errors of records; omit the option",
    "interceptors": "interceptors are not supported; wrap send() or poll() in your own function",
    "offset_commit_cb": "commit() raises the error of a commit, and commit_async() returns a future; omit the option",
    "on_delivery": _ON_DELIVERY,
    "partitioner_cb": "set partitioner to a callable (topic, key, value, partitions) -> partition",
    "queue_buffering_max_kbytes": "buffer_memory limits the buffer, in bytes; set that option",
    "queue_buffering_max_messages": "buffer_memory limits the buffer, in bytes; set that option",
    "rebalance_cb": "pass on_assigned, on_revoked and on_lost to subscribe()",
    "socket_timeout_ms": "request_timeout_ms is how long to wait for a response; set that option",
    "sticky_partitioning_linger_ms": "without a key, a partition gets records until it has batch_size bytes; omit it",
    "topic_blacklist": "subscribe to a pattern that does not match these topics",
    "topic_metadata_propagation_max_ms": "max_block_ms limits how long send() waits for a new topic; set that option",
}
"""librdkafka's name -> what to do instead."""

"""Options of Kafka's Java clients that ours do not have: what to do instead, one sentence each."""

from __future__ import annotations

_BYTES = "keys and values are bytes here: convert them where you use them, or take columns of Arrow tables"
_SECURITY = "TLS and SASL are not there yet: use a PLAINTEXT listener, or a tunnel"
_METRICS = "this client keeps no metrics: leave it out"
_SOCKET = "the operating system sizes a socket's buffers: leave it out"

INSTEAD: dict[str, str] = {
    **dict.fromkeys(("key_deserializer", "value_deserializer", "key_serializer", "value_serializer"), _BYTES),
    "interceptor_classes": "there are no interceptors: wrap send or poll in a function of yours",
    "metric_reporters": _METRICS,
    "metrics_num_samples": _METRICS,
    "metrics_recording_level": _METRICS,
    "metrics_sample_window_ms": _METRICS,
    "enable_metrics_push": _METRICS,
    "config_providers": "values are Python's: read them from where they are",
    "send_buffer_bytes": _SOCKET,
    "receive_buffer_bytes": _SOCKET,
    "socket_connection_setup_timeout_max_ms": "each attempt has socket_connection_setup_timeout_ms: leave it out",
    "client_dns_lookup": "all addresses of a name are tried: leave it out",
    "metadata_recovery_strategy": "bootstrap_servers are tried whenever no known broker answers: leave it out",
    "metadata_recovery_rebootstrap_trigger_ms": (
        "bootstrap_servers are tried whenever no known broker answers: leave it out"
    ),
    "partitioner_class": "give partitioner = round_robin, or a callable (topic, key, value, partitions) -> partition",
    "rebalance_timeout_ms": "a consumer's rebalance time-out is max_poll_interval_ms",
    "share_acknowledgement_mode": "share groups (KIP-932) are not there yet",
    "share_acquire_mode": "share groups (KIP-932) are not there yet",
}
_PREFIXES = {"ssl_": _SECURITY, "sasl_": _SECURITY, "security_": _SECURITY}


def instead(name: str) -> str | None:
    """What to do instead of an option of Kafka's; None if it is none of those."""
    return INSTEAD.get(name) or next((text for prefix, text in _PREFIXES.items() if name.startswith(prefix)), None)

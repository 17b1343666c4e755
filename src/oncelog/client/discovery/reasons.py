"""Why a client waits, in words for its log: what happened, and what helps."""

from __future__ import annotations

from collections.abc import Sequence

from oncelog import errors
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.texts import first_named


def unreachable_broker(doing: str, message: str) -> str:
    """Return the reason if one broker cannot be reached, but others can. `message` begins with the broker."""
    return f"cannot {doing} {message}. Check that it runs, and that its advertised.listeners can be reached from here"


def without_leader(topic: str, partitions: Sequence[int]) -> str:
    """Return the reason if partitions of a topic have no leader."""
    named = first_named((f"{topic}-{partition}" for partition in partitions), len(partitions))
    return f"no leader of {named}. Check that the brokers with its replicas run: oncelog topic describe {topic}"


def unavailable_topic(topic: str, code: ErrorCode | None) -> str:
    """Return the reason if the metadata does not contain a topic. `code` is the broker's, if it has answered."""
    if code is None:
        return f"no broker has answered which brokers lead topic {topic!r}"
    return f"topic {topic!r}: {errors.error_for(code, code.text)}".rstrip(".")


def known_partitions(topic: str, count: int) -> str:
    """Return which partitions a topic has, as the beginning of a sentence about another one."""
    return f"topic {topic!r} has " + ("only partition 0" if count == 1 else f"partitions 0 to {count - 1}")


def unknown_partition(topic: str, count: int, partition: int, when: str = "") -> errors.UnknownTopicError:
    """Return the error for a partition that an existing topic does not have."""
    return errors.UnknownTopicError(
        f"{known_partitions(topic, count)}, not {partition}{when}",
        advice=f"Name one that it has, or add partitions: `oncelog topic alter {topic} --partitions {partition + 1}`.",
    )

"""Name partitions, and the internal topics of the coordinators."""

from __future__ import annotations

TopicPartition = tuple[str, int]
"""A partition: its topic, and its number in the topic."""

CONSUMER_OFFSETS = "__consumer_offsets"
"""The topic of consumer groups and their committed offsets."""
TRANSACTION_STATE = "__transaction_state"
"""The topic of transactional ids and the states of their transactions."""

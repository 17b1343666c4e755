"""The names of the coordinators' own topics."""

from __future__ import annotations

CONSUMER_OFFSETS = "__consumer_offsets"
"""Groups and their offsets."""
TRANSACTION_STATE = "__transaction_state"
"""Transactional ids."""

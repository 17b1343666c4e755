"""The features that this software knows, with their lowest and highest level (KIP-584)."""

from __future__ import annotations

TRANSACTION_VERSION_FEATURE = "transaction.version"
SUPPORTED_FEATURES: dict[str, tuple[int, int]] = {TRANSACTION_VERSION_FEATURE: (0, 2)}

"""The error of a broker's configuration."""

from __future__ import annotations


class ConfigError(ValueError):
    """Raised for a setting that cannot be used. The message is one sentence that names its key."""

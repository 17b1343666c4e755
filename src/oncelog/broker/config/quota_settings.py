"""The broker's settings for client quotas, with Kafka's names. `BrokerConfig` has them, too. Source: `QuotaConfig`."""

from __future__ import annotations

from oncelog.broker.config.security_settings import SecuritySettings
from oncelog.broker.config.setting_types import Empty, Int1


class QuotaSettings(SecuritySettings, frozen=True, kw_only=True):
    """The settings. The others are those of its base, because a `Struct` has only one."""

    quota_window_num: Int1 = 11
    """Windows of a rate. A client may use the quota of all of them but one in a burst."""
    quota_window_size_seconds: Int1 = 1
    """Length of such a window."""
    controller_quota_window_num: Int1 = 11
    """Windows of `controller_mutation_rate`: a burst may use the quota of all of them."""
    controller_quota_window_size_seconds: Int1 = 1
    """Length of such a window."""
    client_quota_callback_class: Empty = ""
    """Must be empty, because plugins for quotas are not supported."""

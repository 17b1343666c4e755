"""Put together what checks the tokens of a listener, and start its background work."""

from __future__ import annotations

from collections.abc import Callable

from oncelog.broker.config.token_settings import TokenSettings
from oncelog.broker.oauth.signed_tokens import SignedTokens
from oncelog.broker.oauth.token_keys import TokenKeys
from oncelog.broker.workers import Runtime
from oncelog.net.oauth_server import TokenUser
from oncelog.net.repeated_lines import RepeatedLines


async def token_check(
    where: str, settings: TokenSettings, now: Callable[[], float], runtime: Runtime
) -> Callable[[str], TokenUser | None]:
    """Read the keys, and return the check: the user of a token, or None if the token is not valid. Raises ConfigError.

    The keys are read again in the background, until the broker stops. `where` names the listener in the log, and `now`
    is a monotonic clock in seconds.
    """
    for warning in settings.warnings():
        runtime.logger.warning("%s: %s", where, warning)
    keys = TokenKeys(settings, now, runtime.logger)
    await keys.load()
    runtime.workers.spawn(keys.run(), f"token keys of {where}")
    lines = RepeatedLines(runtime.logger, "logins")
    return SignedTokens(settings.rules, keys, runtime.now_ms, lines).check

"""Spell the client's options in an error as users of Spark write them."""

from __future__ import annotations

import re

from oncelog.client.other_options import OTHER_OPTIONS, Alias
from oncelog.client.security.options import SECURITY

TOKEN_URL = "sasl.oauthbearer.token.endpoint.url"
NOT_IN_SPARK = (
    (r"sasl_oauth_token_provider,? or |,? or sasl_oauth_token_provider", ""),
    (r"sasl_oauth_token_provider(, which takes no argument)?", TOKEN_URL),
    (r"pass an ssl\.SSLContext of your own as ssl_context", "it is not supported; omit it"),
)
"""Advice about options whose values are Python objects -> advice for Spark, whose values are strings."""

_CLIENT = ("reconnect_backoff_max_ms", "reconnect_backoff_ms", "request_timeout_ms", "transaction_timeout_ms")
_ALIASES = {other for other, known in OTHER_OPTIONS.items() if isinstance(known, Alias) and known.name in SECURITY}
_NAMES = {*SECURITY, *_ALIASES, *_CLIENT} - {"ssl_context", "sasl_oauth_token_provider"}
_LONGEST_FIRST = sorted(_NAMES, key=len, reverse=True)
_SPELLED = re.compile(rf"(?<![\w./-])(?:{'|'.join(name.replace('_', '[._]') for name in _LONGEST_FIRST)})(?![\w-])")


def in_spark(text: str) -> str:
    """Return the text of an error with the prefix `kafka.` at each option of the client."""
    for pattern, replacement in NOT_IN_SPARK:
        text = re.sub(pattern, replacement, text)
    return _SPELLED.sub(lambda found: f"kafka.{found[0].replace('_', '.')}", text)

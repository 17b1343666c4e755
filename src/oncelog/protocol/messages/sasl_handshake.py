"""SaslHandshake: choose the SASL mechanism of a connection (KIP-43).

After version 1, the tokens travel in SaslAuthenticate requests. After version 0, they follow without a header.
"""

from __future__ import annotations

from oncelog.protocol.schema import Message, array, int16, string


class SaslHandshakeRequest(Message, api_key=17, versions=(0, 1)):
    """The request."""

    mechanism: str = string()


class SaslHandshakeResponse(Message, api_key=17, versions=(0, 1)):
    """The response. `mechanisms` has the mechanisms that the broker accepts, also if it rejects the request."""

    error_code: int = int16()
    mechanisms: list[str] = array("string")

"""Connections: framing, version negotiation, back-pressure."""

"""Kafka's wire protocol and record format; imports nothing else of oncelog."""

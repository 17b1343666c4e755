"""Kafka's wire protocol and record format. This package imports no other package of oncelog."""

"""Carry out the operations of source and sink on a Kafka cluster."""

"""Typed keys and values in Spark: options, DDL, and the columns of the source."""

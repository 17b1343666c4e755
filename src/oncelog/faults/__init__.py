"""Faults on demand: a proxy between Kafka clients and brokers that loses, delays, repeats and answers requests.

`FaultProxy` is in `oncelog.testing`, too. `oncelog faults` runs one on the command line.
"""

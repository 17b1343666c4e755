"""The sink's commit protocol as programs without I/O.

A program is a generator that yields `operations` (requests to the brokers) and receives their results. It
is made of phases, listed in a table (`plan.PLAN`, `task.TASK`, `finish.COMMIT`), each of which takes one
immutable state and returns the next. The shell (`oncelog.spark.cluster.brokers.run`) and the exhaustive explorer in the
tests run the very same phases.
"""

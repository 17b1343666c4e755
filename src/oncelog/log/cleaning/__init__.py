"""Log compaction: the last record of each key stays, so a reader from the start still gets the last state.

`plan` finds the part of a log to clean, and how dirty it is. `offsets` has the last offset of each key in the dirty
part. `batches` decides which records stay. `reading` reads segments. `clean` runs a round in small steps, and replaces
the segments. Source: Kafka's ``LogCleaner``, KIP-58, KIP-98, KIP-354, KIP-534.
"""

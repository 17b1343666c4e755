"""Log compaction: of each key the last record stays, and whoever reads from the start still sees the last state.

`plan` says what of a log may be cleaned, and how dirty it is; `offsets` remembers the last offset of each key in the
dirty part; `batches` says what stays of a batch, and `transactions` which transaction it belongs to; `reading` reads
segments; `clean` does the work in small steps and swaps the new segments in.
Source: Kafka's ``LogCleaner``, KIP-58, KIP-98, KIP-354, KIP-534.
"""

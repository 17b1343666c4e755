"""Files of rows (Parquet, CSV, JSON lines) that become records, and records that become such files.

The modules of this package need `oncelog[arrow]`, so commands import them when they run.
"""

FILE_FORMATS = ("parquet", "csv", "jsonl")

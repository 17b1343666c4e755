"""Files of rows (Parquet, CSV, JSON lines) that become records, and records that become such files.

Only `oncelog topic produce --from` and `oncelog topic export` import this package: it needs `oncelog[arrow]`.
"""

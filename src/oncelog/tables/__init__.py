"""Topics as tables: scans with push-down, SQL with DuckDB, lazy frames of polars."""

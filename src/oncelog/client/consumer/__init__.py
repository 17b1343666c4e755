"""The consumer: fetcher, groups and assignors without I/O, the loop that fetches, two faces."""

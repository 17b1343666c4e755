"""The metrics that clients push (KIP-714): what each client shall push, what it may push now, and what is exported."""

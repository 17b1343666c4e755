"""The connections of a client: addresses, the pool, back-off after failures."""

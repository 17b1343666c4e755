"""Client quotas: how much each client has used, and how long it must wait."""

"""The transaction coordinator's two-phase commit."""

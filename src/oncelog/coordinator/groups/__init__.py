"""Consumer groups and committed offsets."""

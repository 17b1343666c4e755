"""The classic consumer-group protocol and committed offsets."""

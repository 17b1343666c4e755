"""The streaming and batch source."""

"""The oncelog command."""

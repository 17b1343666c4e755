"""The group and transaction coordinators of one broker, on the logs of their internal topics."""

"""The group and transaction coordinators of one broker. They keep their state in the logs of internal topics."""

"""Draw the figures of the page "How exactly-once works", each from the requests and log lines of one real run."""

"""The figures of the page "How exactly-once works", each drawn from what one real run has logged and sent."""

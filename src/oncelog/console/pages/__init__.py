"""The pages of the console: each module loads what one or a few addresses show."""

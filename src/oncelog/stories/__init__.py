"""Thirty stories of lost, duplicated and reordered records: each goes wrong, then right with its cure.

`oncelog story` runs them. Each story is a short program, to be read: its argument `cure` is all that differs between
the wrong run and the right one.
"""

"""What a cluster does now: the readings of `oncelog top`, and rows that are computed from them.

`Reader` (`reader`) asks the brokers, within limits for each turn (`turns`). `rows` computes from a `Picture`
(`readings`) what people look at: topics by rate, groups by lag, transactions by age, and brokers.
"""

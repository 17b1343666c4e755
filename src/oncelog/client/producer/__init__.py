"""The producer: accumulator, transaction manager and the rest without I/O, the loop that sends, two faces."""

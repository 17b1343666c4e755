"""What a client counts: recorders that its parts get, and the values that `metrics()` returns. No I/O."""

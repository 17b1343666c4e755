"""Record batches to Arrow arrays and back, in one pass."""

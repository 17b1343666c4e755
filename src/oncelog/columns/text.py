"""Text values as a format."""

from __future__ import annotations

import pyarrow as pa

from oncelog.columns.values import Bad


class Text:
    """Read values that are UTF-8."""

    def __init__(self, *, keep_bad: bool = False) -> None:
        self.type = pa.string()
        self.keep_bad = keep_bad

    def decode(self, values: pa.Array) -> tuple[pa.Array, list[Bad]]:
        """See `oncelog.columns.values.Format`."""
        try:
            return values.cast(pa.string()), []
        except pa.ArrowInvalid:
            pass
        bad: list[Bad] = []
        texts: list[str | None] = []
        for row, value in enumerate(values.to_pylist()):
            texts.append(None)
            try:
                texts[row] = None if value is None else value.decode()
            except UnicodeDecodeError as error:
                bad.append(Bad(row, str(error)))
        return pa.array(texts, pa.string()), bad if self.keep_bad else bad[:1]

    def encode(self, values: pa.Array) -> pa.Array:
        """See `oncelog.columns.values.Format`."""
        return values.cast(pa.large_string()).cast(pa.large_binary())

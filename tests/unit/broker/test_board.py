"""The board for Grafana and the rules for Prometheus agree with the catalog of metrics and with the command line."""

from __future__ import annotations

import json
import re
from itertools import pairwise

import click
import pytest

from oncelog.broker.metrics import alerts, board
from oncelog.broker.metrics.catalog import catalog
from oncelog.cli.app import oncelog
from support.docs_blocks import ROOT

COMMAND = re.compile(r"`oncelog ([^`]+)`")


def test_each_metric_is_on_the_board() -> None:
    shown = set().union(*(alerts.metrics_of(query.expression) for query in board.queries()))
    assert shown == {each.name for each in catalog()}


def test_panels_of_the_board_have_places_and_numbers_of_their_own() -> None:
    made = json.loads(board.as_json())
    panels = [*made["panels"], *(inner for panel in made["panels"] for inner in panel.get("panels", ()))]
    numbers = [panel["id"] for panel in panels]
    assert len(set(numbers)) == len(numbers) > len(board.ROWS)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= board.COLUMNS
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
    tops = [panel["gridPos"]["y"] for panel in made["panels"]]
    assert all(above <= below for above, below in pairwise(tops))


def test_panels_explain_their_metrics() -> None:
    for _, panels in board.rows():
        for panel in panels:
            assert panel.text, panel.title


def test_rules_name_metrics_of_the_catalog() -> None:
    known = {each.name for each in catalog()}
    for rule in alerts.RULES:
        assert alerts.metrics_of(rule.expression) <= known, rule.name
    assert len({rule.name for rule in alerts.RULES}) == len(alerts.RULES)


def test_page_explains_each_alert() -> None:
    page = (ROOT / "docs" / "operations" / "monitoring.md").read_text()
    shown = re.findall(r"(?m)^\| `(Oncelog\w+)` \|", page)
    assert sorted(shown) == sorted(rule.name for rule in alerts.RULES)


@pytest.mark.parametrize("rule", alerts.RULES, ids=lambda rule: rule.name)
def test_command_in_the_text_of_an_alert_exists(rule: alerts.Rule) -> None:
    commands = COMMAND.findall(rule.remedy)
    assert commands, "the text names no command"
    for line in commands:
        found: click.Command = oncelog
        options: list[str] = []
        for word in line.split():
            if isinstance(found, click.Group):
                inner = found.get_command(click.Context(found), word)
                assert inner is not None, line
                found = inner
            elif word.startswith("--"):
                options.append(word)
        known = {name for parameter in found.params for name in parameter.opts}
        assert set(options) <= known, line
        assert not isinstance(found, click.Group), line


def test_quotation_marks_in_a_rule_do_not_end_its_text() -> None:
    rule = alerts.Rule("A", "warning", 'x{a="b"} > 0', "1m", "first\nsecond", 'say "yes"')
    lines = alerts.as_yaml([rule]).splitlines()
    assert r'        expr: "x{a=\"b\"} > 0"' in lines
    assert r'          summary: "first\nsecond"' in lines

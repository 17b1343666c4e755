"""The page of threats: each row names tests that exist, or says what is not protected. Its numbers are the code's."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import pytest

from oncelog.broker import log_lines, logins
from oncelog.broker.config.security_settings import SecuritySettings
from oncelog.broker.config.settings import BrokerConfig
from oncelog.broker.metadata import delegation_tokens
from oncelog.broker.oauth import signed_tokens
from oncelog.broker.requests import authorizer
from oncelog.net import admission, handshakes, http_server, replies, sasl, sasl_server, server_options, unsent
from support.docs_blocks import ROOT

PAGE = (ROOT / "docs/operations/threats.md").read_text()
_TEST = re.compile(r"`([a-z_/]+\.py)::(test_[a-z0-9_]+)`")
OPEN = "**not protected**"


class Statement(NamedTuple):
    """One row of a table."""

    attack: str
    answer: str
    shown: str


def statements() -> Iterator[Statement]:
    for line in PAGE.splitlines():
        if line.startswith("| ") and not line.endswith("| Shown by |"):
            yield Statement(*(cell.strip() for cell in line.strip("|").split("|")))


@cache
def functions_of(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / "tests" / path).read_text())
    return frozenset(each.name for each in tree.body if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)))


@pytest.mark.parametrize("statement", list(statements()), ids=lambda each: each.attack)
def test_statement_names_tests_or_says_not_protected(statement: Statement) -> None:
    named = _TEST.findall(statement.shown)
    assert [f"{path}::{test}" for path, test in named if test not in functions_of(path)] == []
    assert named or (OPEN in statement.answer and statement.shown), statement
    assert not named or not _TEST.sub("", statement.shown).strip(", "), "tests, or words, but not both"


@pytest.mark.parametrize(
    ("what", "number"),
    [
        ("time of a TLS handshake", handshakes.DEADLINE_S),
        ("TLS handshakes in progress of a listener", handshakes.MOST),
        ("time until the login is complete", logins.LOGIN_S),
        ("request before the login", SecuritySettings().sasl_server_max_receive_size),
        ("time until a rejected connection is closed", SecuritySettings().connection_failed_authentication_delay_ms),
        ("size of a token", signed_tokens.MAX_TOKEN),
        ("iterations of a SCRAM credential", sasl.MOST_ITERATIONS),
        ("size of a request", server_options.MAX_REQUEST_BYTES),
        ("requests of a connection that wait for their responses", replies.MOST_PENDING),
        ("unread responses of all connections", unsent.DEFAULT_LIMIT),
        ("remembered decisions of the authorizer", authorizer.MOST_REMEMBERED),
        ("connections of a listener that wait for a free place", admission.MOST_WAITING),
        ("addresses whose rate of connections is measured", admission.MOST_RATES),
        ("users that may renew a delegation token", delegation_tokens.MOST_RENEWERS),
        ("log lines that wait for a reader", log_lines.MOST_BYTES),
        ("connections to the port of metrics", http_server.MOST_CONNECTIONS),
        ("idle connections", BrokerConfig().connections_max_idle_ms),
    ],
)
def test_bound_has_the_number_of_the_code(what: str, number: float) -> None:
    [bound] = [each.answer for each in statements() if each.attack == what]
    assert re.match(rf"{number:,.0f}\b", bound), bound


def test_numbers_of_scram_are_those_of_the_code() -> None:
    assert f"at most {sasl.MAX_ITERATIONS:,} iterations of SCRAM" in PAGE
    assert f"{sasl.MIN_ITERATIONS:,} to {sasl.MOST_ITERATIONS:,} hashes" in PAGE


def test_metrics_are_off_and_local_by_default() -> None:
    config = BrokerConfig()
    assert (config.metrics_port, config.metrics_host) == (-1, "127.0.0.1")


def test_secrets_are_compared_in_constant_time() -> None:
    """Times cannot be asserted, so this looks at the code: no proof and no password is compared with `==`."""
    source = inspect.getsource(sasl_server)
    compared = [ast.unparse(node) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Compare)]
    secret = re.compile(r"(?<!len\()\b\w*(password|proof|key|signature|digest)")
    assert [each for each in compared if secret.search(each) and re.search("==|!=", each)] == []
    assert source.count("hmac.compare_digest(") >= 2

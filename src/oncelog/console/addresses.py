"""The addresses of the console: which function loads each page, and which one carries out each action."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from oncelog.console.model import Actor, Page, View
from oncelog.console.pages import (
    access,
    cluster,
    group,
    groups,
    messages,
    partition,
    producers,
    settings,
    sinks,
    topic,
    topics,
    transaction,
    transactions,
)

Act = Callable[[Actor, Mapping[str, Any], Mapping[str, str]], Awaitable[str]]
"""Carry out an action: its client, the parts of the address, and the form. Returns the address to go to."""

PAGES: dict[str, Callable[[View], Awaitable[Page]]] = {
    "/": cluster.load,
    "/topics": topics.load,
    "/topics/{topic}": topic.load,
    "/topics/{topic}/produce": messages.load_form,
    "/topics/{topic}/{partition:int}": partition.load,
    "/topics/{topic}/{partition:int}/messages": messages.load,
    "/topics/{topic}/{partition:int}/producers": producers.load,
    "/topics/{topic}/{partition:int}/abort": transaction.load_abort,
    "/transactions": transactions.load,
    "/transaction": transaction.load,
    "/transaction/end": transaction.load_end,
    "/producers": producers.load_all,
    "/groups": groups.load,
    "/group": group.load,
    "/group/reset": group.load_reset,
    "/sinks": sinks.load,
    "/sink": sinks.load_one,
    "/access": access.load,
    "/settings": settings.load,
}
ACTIONS: dict[str, Act] = {
    "/topics/{topic}/produce": messages.produce,
    "/topics/{topic}/{partition:int}/abort": transaction.abort,
    "/transaction/end": transaction.end,
    "/group/reset": group.reset,
}

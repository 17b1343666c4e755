"""Generate the table of the permissions that each API needs, from the table that the tests run on both brokers.

`support.permission_table` has the requests and the ACLs, `support.permission_outcomes` the outcomes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from docs_site.markdown import anchor, code, table, text
from oncelog.protocol.kinds import AclResource
from support.permission_outcomes import OUTCOMES
from support.permission_rows import Row
from support.permission_table import NOT_IN_TABLE, rows
from support.permissions import Grant

PARTS = {
    "-": "response",
    "open": "allowed one",
    "shut": "forbidden one",
    "gone": "missing one",
    "new": "new topic",
    "open-new": "new topic",
    "1": "broker 1",
    "directory": "directories",
}
"""What the labels of `support.permissions.outcome` stand for."""
HEAD = ("API", "needs one of", "not enough", "is checked for", "without permission", "with permission")
_PERMITTED = frozenset({"NONE", "LISTED"})


def page() -> str:
    """Return the page."""
    return "\n".join(
        [
            "# Permissions\n",
            "What a client needs for each API, if the broker has an authorizer. "
            "[Secure a broker](../operations/security.md) describes ACLs, and "
            "[permissions of usual roles](../operations/permissions.md) has the commands.\n",
            "The tests send every row to oncelog and to Apache Kafka, in each version that both serve: without a "
            "permission, with the ones that are not enough, and with each one that is enough. A DENY then takes it "
            "back. Both brokers have the same outcomes.\n",
            text(
                "The columns on the right have the errors by the versions of the request. `allowed one` is an item "
                "(topic, group or transactional id) that the client may use anyway, `forbidden one` is the item in "
                "question, and `missing one` does not exist. `listed` means that the response has the item, and an "
                "item that is not in a column is left out of the response."
            )
            + "\n",
            table(HEAD, map(_cells, rows())),
            "## Without a row { #without-a-row }\n",
            table(("API", "reason"), ((_name(each.name), text(why)) for each, why in NOT_IN_TABLE.items())),
        ]
    )


def _name(key: str) -> str:
    return key.title().replace("_", "")


def _cells(row: Row) -> tuple[str, ...]:
    without, allowed = OUTCOMES[row.name]
    enough = (*row.sufficient, *row.untried)
    return (
        anchor(row.name) + text(row.name),
        _spelled(each for grants in enough for each in grants) or "nothing",
        _spelled(row.insufficient),
        "; ".join(_checked(without)),
        _outcomes(without),
        _outcomes(allowed) or _untried(row),
    )


def _untried(row: Row) -> str:
    return "the topic is deleted" if row.untried else "the same"


def _spelled(grants: Iterable[Grant]) -> str:
    """Return operations by their resource, such as `READ`, `ALL` on the topic."""
    found: dict[AclResource, list[str]] = {}
    for each in grants:
        names = found.setdefault(each.resource, [])
        if each.operation.name not in names:
            names.append(each.operation.name)
    return "; ".join(
        f"{', '.join(map(code, names))} on the {resource.name.lower().replace('_', ' ')}"
        for resource, names in found.items()
    )


def by_item(without: str) -> bool:
    """Return whether the rest of a request succeeds if one item is forbidden, for a line without the permission."""
    found = parts(without)
    whole = found.get("-", "NONE") not in _PERMITTED or found.get("open", "").endswith("_AUTHORIZATION_FAILED")
    return not whole and set(found) != {"-"}


def _checked(without: Mapping[str, str]) -> Iterator[str]:
    """Yield for which part of a request the permission is checked, with the versions if they differ."""
    kinds = {family: by_item(line) for family, line in without.items()}
    for family, each in kinds.items():
        words = "each item" if each else "the whole request"
        if len(set(kinds.values())) == 1:
            yield words
            return
        yield f"{_versions(family)}: {words}"


def parts(line: str) -> Mapping[str, str]:
    """Return the outcomes in a line by their labels, with the whole names of errors."""
    found = dict(part.split("=") for part in line.split())
    return {label: outcome.replace("_AUTH", "_AUTHORIZATION_FAILED") for label, outcome in found.items()}


def _outcomes(lines: Mapping[str, str]) -> str:
    return "<br>".join(f"{_versions(family)}: {', '.join(_parts(line))}" for family, line in lines.items())


def _versions(family: str) -> str:
    return f"v{family.replace('-', ' to v')}"


def _parts(line: str) -> Iterator[str]:
    """Yield a line's parts. Leave out a response without an error if it has other parts."""
    found = parts(line)
    for label, outcome in found.items():
        if label == "-" and outcome == "NONE" and len(found) > 1:
            continue
        name, _, field = label.partition(".")
        settings = "settings of the " if field else ""
        shown = " and ".join("listed" if each == "LISTED" else code(each) for each in outcome.split("+"))
        yield f"{settings}{PARTS.get(name, name)} {shown}"

"""`oncelog quota`: set, list and delete client quotas."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from oncelog.cli.common import assignments, confirm, confirmed, connected, formatted, open_admin, show
from oncelog.cli.lazy import LazyGroup, examples

if TYPE_CHECKING:
    from oncelog.client.admin.quotas import ClientQuotaEntity

Command = TypeVar("Command", bound=Callable[..., Any])

COLUMNS = ("user", "client_id", "ip", "quota", "value")
_PARTS = {
    "user": ("user", "A user, such as alice. A client without a login is ANONYMOUS.", "users"),
    "client": ("client_id", "A client id.", "client ids"),
    "ip": ("ip", "An IP address.", "addresses"),
}
"""Option -> (part of the entity, help, plural for the help of the defaults)."""
_SHOWN_DEFAULT = "<default>"

quota = LazyGroup(
    "quota",
    help="Set, list and delete quotas: what the clients of a user or of a client id may use of each broker.",
    table={
        "set": ("oncelog.cli.quota:set_quotas", "Set quotas of a user, a client id or an address."),
        "list": ("oncelog.cli.quota:list_quotas", "List quotas."),
        "delete": ("oncelog.cli.quota:delete", "Delete quotas of a user, a client id or an address."),
    },
)


def parts(command: Command) -> Command:
    """Add the options that name users, client ids and addresses."""
    for option, (part, text, plural) in reversed(_PARTS.items()):
        command = click.option(
            f"--{option}-defaults", f"{part}_defaults", is_flag=True, help=f"All {plural} without a quota of their own."
        )(command)
        command = click.option(f"--{option}", part, metavar="NAME", help=text)(command)
    return command


def _chosen(given: dict[str, Any]) -> dict[str, str]:
    """Take the options of `parts`. Return the name of each part. Raises UsageError."""
    from oncelog.client.admin.quotas import DEFAULT

    found = {}
    for option, (part, _, _) in _PARTS.items():
        name, default = given.pop(part), given.pop(f"{part}_defaults")
        if name is not None and default:
            raise click.UsageError(f"--{option} and --{option}-defaults cannot be used together; omit one of them")
        if name == "":
            raise click.UsageError(f"the name in --{option} is empty; use --{option}-defaults for all others")
        if name is not None or default:
            found[part] = DEFAULT if default else name
    if "ip" in found and len(found) > 1:
        raise click.UsageError("--ip cannot be used together with a user or a client id")
    return found


def _entity(given: dict[str, Any]) -> ClientQuotaEntity:
    from oncelog.client.admin.quotas import ClientQuotaEntity

    found = _chosen(given)
    if not found:
        raise click.UsageError("name a user, a client id or an address, such as --user alice")
    return ClientQuotaEntity(**found)


def _rows(quotas: Mapping[ClientQuotaEntity, Mapping[str, float]]) -> list[dict[str, Any]]:
    rows = []
    for entity, values in quotas.items():
        names = {part: _SHOWN_DEFAULT if name == "" else name for part, name in entity._asdict().items()}
        rows += [{**names, "quota": key, "value": _number(value)} for key, value in sorted(values.items())]
    return rows


def _number(value: float) -> float | int:
    return int(value) if value.is_integer() else value


@click.command(
    "set",
    epilog=examples(
        "oncelog quota set producer_byte_rate=1000000 --user alice",
        "oncelog quota set consumer_byte_rate=5000000 request_percentage=20 --user-defaults",
        "oncelog quota set producer_byte_rate=1000000 --user alice --client loader",
    ),
)
@click.argument("quotas", nargs=-1, required=True, metavar="QUOTA=VALUE...")
@parts
@connected
@formatted
def set_quotas(quotas: tuple[str, ...], bootstrap: str, form: str, **given: Any) -> None:
    """Set quotas of a user, a client id, a user with a client id, or an address. They count at once.

    The quotas are producer_byte_rate and consumer_byte_rate (bytes per second), request_percentage, and
    controller_mutation_rate (created and deleted partitions per second). An address has only connection_creation_rate.
    """
    wanted = {key: _value(key, text) for key, text in assignments("QUOTA=VALUE", quotas).items()}
    entity = _entity(given)
    with open_admin(bootstrap) as admin:
        admin.alter_client_quotas({entity: wanted})
    show(_rows({entity: wanted}), form, COLUMNS)


def _value(key: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise click.UsageError(f"the value of {key} must be a number, not {text!r}") from None


@click.command("list", epilog=examples("oncelog quota list", "oncelog quota list --user alice"))
@parts
@connected
@formatted
def list_quotas(bootstrap: str, form: str, **given: Any) -> None:
    """List all quotas, or those of the users, client ids or addresses in the options."""
    chosen: dict[str, Any] = _chosen(given)
    with open_admin(bootstrap) as admin:
        found = admin.describe_client_quotas(**chosen)
    show(_rows(found), form, COLUMNS)


@click.command(epilog=examples("oncelog quota delete producer_byte_rate --user alice --yes"))
@click.argument("keys", nargs=-1, metavar="[QUOTA]...")
@parts
@confirmed
@connected
@formatted
def delete(keys: tuple[str, ...], yes: bool, bootstrap: str, form: str, **given: Any) -> None:
    """Delete the named quotas of a user, a client id or an address, or all of them, and show them."""
    entity = _entity(given)
    chosen: dict[str, Any] = {part: name for part, name in entity._asdict().items() if name is not None}
    with open_admin(bootstrap) as admin:
        present = admin.describe_client_quotas(**chosen, strict=True).get(entity, {})
        missing = [key for key in keys if key not in present]
        if missing:
            raise click.UsageError(f"there is no quota {missing[0]!r} to delete; `oncelog quota list` lists all quotas")
        found = {key: value for key, value in present.items() if not keys or key in keys}
        if found:
            confirm(f"this deletes {len(found)} quota{'s' if len(found) > 1 else ''}", yes=yes)
            admin.alter_client_quotas({entity: dict.fromkeys(found)})
    show(_rows({entity: found}), form, COLUMNS)

"""`oncelog user`: add, list and delete the users that log in with SCRAM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from oncelog.cli.common import confirm, confirmed, connected, formatted, open_admin, show
from oncelog.cli.lazy import LazyGroup, examples
from oncelog.cli.passwords import read_password
from oncelog.protocol.kinds import SCRAM_MECHANISMS

if TYPE_CHECKING:
    from oncelog.client.admin.users import ScramCredentialInfo

COLUMNS = ("user", "mechanism", "iterations")

user = LazyGroup(
    "user",
    help="Add, list and delete users that log in with SCRAM. Their credentials are in the cluster's metadata.",
    table={
        "add": ("oncelog.cli.user:add", "Add a user, or change its password."),
        "list": ("oncelog.cli.user:list_users", "List users."),
        "delete": ("oncelog.cli.user:delete", "Delete users."),
    },
)

_mechanism = click.option(
    *("--mechanism", "mechanisms"),
    multiple=True,
    type=click.Choice([*SCRAM_MECHANISMS], case_sensitive=False),
    help="A mechanism of SCRAM. Repeatable.",
)


def _rows(users: Mapping[str, Sequence[ScramCredentialInfo]]) -> list[dict[str, Any]]:
    return [
        {"user": name, "mechanism": each.mechanism, "iterations": each.iterations}
        for name, credentials in users.items()
        for each in credentials
    ]


@click.command(epilog=examples("oncelog user add alice", "oncelog user add alice --password-file - < password.txt"))
@click.argument("name")
@_mechanism
@click.option("--iterations", type=int, default=4096, help="How often the password is hashed: 4096 (default) to 16384.")
@click.option("--password-file", metavar="FILE", help="Read the password from this file, or from stdin (-).")
@connected
@formatted
def add(
    name: str, mechanisms: tuple[str, ...], iterations: int, password_file: str | None, bootstrap: str, form: str
) -> None:
    """Add the user NAME, or change the password of an existing user.

    Without --mechanism, the user can log in with SCRAM-SHA-512. The command asks for the password. It sends a hash of
    the password, from which the broker cannot recover it.
    """
    from oncelog.client.admin.users import UserScramCredentialUpsertion

    password = read_password(name, password_file)
    wanted = [
        UserScramCredentialUpsertion(name, password, mechanism, iterations)
        for mechanism in dict.fromkeys(mechanisms or ("SCRAM-SHA-512",))
    ]
    with open_admin(bootstrap) as admin:
        for change in wanted:  # a broker accepts one change of a user in a request
            admin.alter_user_scram_credentials(change)
    show([{"user": name, "mechanism": each.mechanism, "iterations": iterations} for each in wanted], form, COLUMNS)


@click.command(name="list", epilog=examples("oncelog user list", "oncelog user list alice --format json"))
@click.argument("names", nargs=-1, metavar="[NAME]...")
@connected
@formatted
def list_users(names: tuple[str, ...], bootstrap: str, form: str) -> None:
    """List the users that log in with SCRAM, or only the users NAME. Passwords are not shown."""
    with open_admin(bootstrap) as admin:
        found = admin.describe_user_scram_credentials(names or None)
    _require(names, found)
    show(_rows(found), form, COLUMNS)


@click.command(epilog=examples("oncelog user delete alice", "oncelog user delete alice --mechanism SCRAM-SHA-256"))
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@_mechanism
@confirmed
@connected
@formatted
def delete(names: tuple[str, ...], mechanisms: tuple[str, ...], yes: bool, bootstrap: str, form: str) -> None:
    """Delete the users NAME: all their credentials, or those for --mechanism only.

    Open connections of the users stay open. Their ACLs are not deleted.
    """
    from oncelog.client.admin.users import UserScramCredentialDeletion

    with open_admin(bootstrap) as admin:
        found = admin.describe_user_scram_credentials(names)
        _require(names, found)
        chosen = {
            name: [each for each in credentials if not mechanisms or each.mechanism in mechanisms]
            for name, credentials in found.items()
        }
        if missing := next((name for name, credentials in chosen.items() if not credentials), None):
            raise click.ClickException(f"user {missing!r} has no credential for {', '.join(mechanisms)}")
        count = len(chosen)
        confirm(f"this deletes credentials of {count} user{'s' if count > 1 else ''}", yes=yes)
        for name, credentials in chosen.items():
            for each in credentials:
                admin.alter_user_scram_credentials(UserScramCredentialDeletion(name, each.mechanism))
    show(_rows(chosen), form, COLUMNS)


def _require(names: Sequence[str], found: Mapping[str, object]) -> None:
    """Raise ClickException if a user does not exist."""
    if missing := [name for name in names if name not in found]:
        listed = ", ".join(map(repr, missing))
        raise click.ClickException(f"no SCRAM user has the name {listed}; `oncelog user list` lists all users")

"""The `oncelog` command: one module a verb group, imported when it is asked for."""

from __future__ import annotations


def main() -> None:
    """Entry point; ends the process with the command's exit status."""
    from oncelog.cli.app import run

    run()

"""The `oncelog` command. Each group of commands has a module, which is imported when a command of it runs."""

from __future__ import annotations


def main() -> None:
    """Run the command line, then end the process with the command's exit status."""
    from oncelog.cli.app import run

    run()

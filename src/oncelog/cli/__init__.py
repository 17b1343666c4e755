"""The `oncelog` command. Each group of commands has a module, which is imported when a command of it runs."""

from __future__ import annotations


def main() -> None:
    """Run the command line, then end the process with the command's exit status."""
    try:
        from oncelog.cli.app import run
    except KeyboardInterrupt:  # `run` handles the later ones in the same way
        raise SystemExit(130) from None

    run()

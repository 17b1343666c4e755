"""Run the `oncelog` command: `python -m oncelog`."""

from __future__ import annotations

from oncelog.cli import main

main()

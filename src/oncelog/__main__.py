"""`python -m oncelog` is the `oncelog` command."""

from __future__ import annotations

from oncelog.cli import main

main()

"""systemd accepts the unit in `deploy/`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.docs_blocks import ROOT


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    text = (ROOT / "deploy" / "oncelog.service").read_text()
    program = Path(sys.executable).with_name("oncelog")
    unit = tmp_path / "oncelog.service"
    unit.write_text(text.replace("/opt/oncelog/bin/oncelog", str(program)))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")

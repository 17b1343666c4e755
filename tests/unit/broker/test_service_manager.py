"""The messages to a service manager, and what the environment says about it."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

import pytest

from oncelog.broker.service_manager import ServiceManager


def made(environment: dict[str, str], pid: int = 7) -> ServiceManager | None:
    return ServiceManager.from_environment(environment, pid, logging.getLogger("test"))


def test_environment_without_a_manager_has_none() -> None:
    assert made({}) is None
    assert made({"NOTIFY_SOCKET": ""}) is None


def test_variables_are_removed_so_that_no_child_has_them(tmp_path: Path) -> None:
    environment = {"NOTIFY_SOCKET": str(tmp_path / "n"), "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "7", "HOME": "x"}
    manager = made(environment)
    assert manager is not None
    assert manager.watchdog_s == 3.0
    assert environment == {"HOME": "x"}


@pytest.mark.parametrize("variables", [{"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "soon"}, {"WATCHDOG_PID": "8"}, {}])
def test_watchdog_that_is_off_or_of_another_process_is_zero(tmp_path: Path, variables: dict[str, str]) -> None:
    usec = {} if not variables else {"WATCHDOG_USEC": "3000000"}
    manager = made({"NOTIFY_SOCKET": str(tmp_path / "n"), **usec, **variables})
    assert manager is not None
    assert manager.watchdog_s == 0.0


@pytest.mark.parametrize("address", ["vsock:2:1234", "relative/path"])
def test_other_kinds_of_addresses_are_reported_and_not_used(address: str, caplog: pytest.LogCaptureFixture) -> None:
    assert made({"NOTIFY_SOCKET": address}) is None
    assert address in caplog.text


def test_status_cannot_add_an_assignment(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind(str(tmp_path / "n"))
        manager = made({"NOTIFY_SOCKET": str(tmp_path / "n")})
        assert manager is not None
        manager.status("waiting for x\nMAINPID=1\r\n")
        assert end.recv(1000) == b"STATUS=waiting for x MAINPID=1"
        manager.ready("y" * 10_000)
        assert end.recv(100_000).startswith(b"READY=1\nSTATUS=yyy")
        manager.close()


def test_manager_that_does_not_answer_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    manager = made({"NOTIFY_SOCKET": str(tmp_path / "missing")})
    assert manager is not None
    manager.ready("x")
    manager.alive()
    assert len(caplog.records) == 1
    manager.close()


def test_full_queue_of_the_manager_does_not_block(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind(str(tmp_path / "n"))
        manager = made({"NOTIFY_SOCKET": str(tmp_path / "n")})
        assert manager is not None
        for _ in range(100_000 // 50):
            manager.alive()
        manager.close()

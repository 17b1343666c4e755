"""Each of the thirty stories goes wrong without its cure, and right with it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from oncelog.stories.catalog import STORIES, show
from oncelog.stories.stage import Stage
from oncelog.testing import Broker
from support.command_line import ONCELOG, run
from support.processes import wait_until


@pytest.mark.parametrize("number", STORIES)
def test_story_ends_as_told(number: int) -> None:
    lines: list[str] = []
    shown = show(number, lines.append)
    assert shown.as_told, "\n".join(lines)


def test_list_names_all_stories() -> None:
    status, stdout, _ = run("story")
    assert status == 0
    assert re.findall(r"^ ?(\d+)  ", stdout, re.MULTILINE) == [str(number) for number in range(1, 31)]


def test_command_says_each_step_and_the_verdict() -> None:
    status, stdout, stderr = run("story", "27", "26")
    assert (status, stderr) == (0, "")
    assert "  broker 1: producer ids 0 to 999\n" in stdout
    assert "  => WRONG: each of the ids twice\n" in stdout
    assert "  => right: each id once\n" in stdout
    assert stdout.endswith("\n2 of 2 stories have ended as told\n")


def test_command_says_which_stories_do_not_run_on_the_given_brokers() -> None:
    status, _, stderr = run("story", "27", "-b", "127.0.0.1:1")
    assert (status, stderr) == (0, "oncelog: story 27 does not run on 127.0.0.1:1: it needs no broker\n")
    _, shown, _ = run("story", "--help")
    listed = " ".join(shown.split()).partition("each story starts its own.")[2].partition("-h,")[0]
    told = {int(number) for number in re.findall(r"\d+", listed)}
    assert told == {number for number, story in STORIES.items() if story.instead}


def test_producer_with_a_new_epoch_keeps_its_id() -> None:
    status, stdout, stderr = run("story", "19")
    assert (status, stderr) == (0, "")
    assert "  the producer has id 0, epoch 1 now\n" in stdout


@pytest.mark.parametrize("number", ["0", "31", "one"])
def test_unknown_story_is_rejected(number: str) -> None:
    status, _, stderr = run("story", number)
    assert status == 2
    assert "is not the number of a story" in " ".join(stderr.split())


def dies(*arguments: str, folder: Path, after: float, number: signal.Signals) -> None:
    """Send a signal to a command, and wait until it has left no data."""
    env = {**os.environ, "TMPDIR": str(folder)}
    command = subprocess.Popen([ONCELOG, *arguments], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: list(folder.iterdir()), "it has a folder")
        time.sleep(after)
        command.send_signal(number)
        command.wait(60)
        wait_until(
            lambda: not list(folder.iterdir()), f"{number.name} after {after} s: its folder is deleted", timeout=20
        )
    finally:
        command.kill()
        command.wait()


@pytest.mark.parametrize(
    ("number", "after"), [(signal.SIGINT, 0), (signal.SIGINT, 0.5), (signal.SIGTERM, 2), (signal.SIGKILL, 2)]
)
def test_story_that_is_ended_leaves_no_data(tmp_path: Path, number: signal.Signals, after: float) -> None:
    dies("story", "6", folder=tmp_path, after=after, number=number)


def test_broker_that_is_ended_as_it_starts_leaves_no_data(tmp_path: Path) -> None:
    dies("up", "--ephemeral", "--port", "0", folder=tmp_path, after=0, number=signal.SIGTERM)


def interrupted(stage: Stage, broker: Broker) -> None:
    with stage:
        stage.topic()
        broker.kill()
        raise KeyboardInterrupt


def test_brokers_that_have_died_do_not_hide_why_a_story_ends() -> None:
    lines: list[str] = []
    with Broker() as broker, pytest.raises(KeyboardInterrupt):
        interrupted(Stage(lines.append, broker.bootstrap_servers), broker)
    assert lines[-1].startswith("cannot delete the topics story-")


def test_story_on_a_dead_broker_says_what_it_waits_for() -> None:
    status, stdout, stderr = run("story", "1", "-b", "127.0.0.1:1")
    assert (status, stdout) == (1, "")
    assert stderr.startswith("oncelog: connecting to 127.0.0.1:1\noncelog: no broker can be reached: 127.0.0.1:1: ")

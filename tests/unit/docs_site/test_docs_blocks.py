"""How blocks of a page are declared, and how they are run."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.docs_blocks import BlockError, blocks, name_of, pages, same_output
from support.docs_pages import PageRun


def page(*lines: str) -> list[tuple[str, str, str]]:
    return [(block.kind, block.text, block.code) for block in blocks("page.md", "\n".join(lines))]


@pytest.mark.parametrize("path", pages(), ids=name_of)
def test_every_block_is_run_or_says_why_not(path: Path) -> None:
    blocks(name_of(path), path.read_text())


def test_kinds_of_blocks() -> None:
    assert page("# Title", "```python", "a = 1", "```") == [("run", "", "a = 1\n")]
    assert page("<!-- until: ready now -->", "```sh", "sleep 9", "```") == [("until", "ready now", "sleep 9\n")]
    assert page("<!-- setup", "true", "-->", "<!-- check", "assert 1", "-->") == [
        ("setup", "", "true\n"),
        ("check", "", "assert 1\n"),
    ]


def test_block_in_a_tab_is_dedented() -> None:
    lines = ('=== "Python"', "", "    ```python", "    if a:", "        b()", "    ```")
    assert page(*lines) == [("run", "", "if a:\n    b()\n")]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("```", "x", "```"), "page.md:1: the fence has no language"),
        (("```toml", "x", "```"), "a block of toml needs a marker"),
        (("<!-- outptu -->", "```text", "x", "```"), "'outptu' is not a marker"),
        (("<!-- not run: no -->", "```sh", "x", "```"), "say in a few words why"),
        (("<!-- not run -->", "```sh", "x", "```"), "is not a marker"),
        (("<!-- fails -->", "```sh", "x", "```"), "is not a marker"),
        (("<!-- server -->", "```sh", "ls", "```"), "server is for one `oncelog up`"),
        (("<!-- until: x -->", "```text", "ls", "```"), "until is for blocks of python and sh"),
        (("<!-- output -->", "```text", "x", "```"), "no block before it"),
        (("```sh", "x"), "the block has no end"),
        (("<!-- setup", "x"), "the block has no end"),
    ],
)
def test_undeclared_block_is_an_error(lines: tuple[str, ...], message: str) -> None:
    with pytest.raises(BlockError, match=message):
        page(*lines)


@pytest.mark.parametrize(
    ("expected", "found", "same"),
    [
        ("a\nb\n", "a  \nb\n\n", True),
        ("a\n", "a\nb\n", False),
        ("a ... c", "a 123 c", True),
        ("a ... c", "a 1\n2 c", False),
        ("a\n...\nd", "a\nb\nc\nd", True),
        ("a\n...\nd", "a\nd", True),
        ("...", "", True),
        ("a\n...", "b\nc", False),
    ],
)
def test_output_with_dots(expected: str, found: str, same: bool) -> None:
    assert same_output(expected, found) is same


def run(folder: Path, *lines: str) -> None:
    with PageRun(folder, "127.0.0.1:7") as running:
        running.run(blocks("page.md", "\n".join(lines)))


def test_blocks_share_names_and_a_folder(tmp_path: Path) -> None:
    run(
        tmp_path,
        *("<!-- file: words.txt -->", "```text", "localhost:9092", "```"),
        *("```sh", "cat words.txt; echo $ONCELOG_BROKERS >&2", "```"),
        *("<!-- output -->", "```text", "localhost:9092", "```"),
        *("<!-- output -->", "```text", "localhost:9092", "127.0.0.1:9092", "```"),
        *("```python", "a = open('words.txt').read()", "```"),
        *("```python", "print(a, end='')", "```"),
        *("<!-- check", "assert a == '127.0.0.1:7\\n', a", "-->"),
        *("<!-- output -->", "```text", "localhost:9092", "```"),
    )


@pytest.mark.parametrize(
    "lines",
    [
        ("```sh", "false", "true", "```"),
        ("```python", "1 / 0", "```"),
        ("<!-- check", "assert False", "-->"),
        ("<!-- fails: x -->", "```sh", "echo x", "```"),
        ("<!-- fails: x -->", "```sh", "echo y; false", "```"),
        ("<!-- fails: ValueError -->", "```python", "1 / 0", "```"),
        ("```sh", "echo a", "```", "<!-- output -->", "```text", "b", "```"),
        ("<!-- until: x -->", "```sh", "echo y", "```"),
    ],
)
def test_block_that_does_something_else_fails(tmp_path: Path, lines: tuple[str, ...]) -> None:
    with pytest.raises(AssertionError, match=r"page\.md:\d"):
        run(tmp_path, *lines)


def test_failures_and_endless_blocks_that_are_declared(tmp_path: Path) -> None:
    run(
        tmp_path,
        *("<!-- fails: division by zero -->", "```python", "1 / 0", "```"),
        *("<!-- fails: bad -->", "```sh", "echo bad; exit 3", "```"),
        *("<!-- until: ready -->", "```sh", "echo ready; exec sleep 60", "```"),
        *("<!-- until: ready -->", "```python", "import time", "print('ready')", "time.sleep(60)", "```"),
        *("```python", "print(time.sleep)", "```"),
        *("<!-- not run: it takes too long -->", "```sh", "sleep 1000", "```"),
    )

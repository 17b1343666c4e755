"""The check of the repository's pages finds links that are dead in a clone or on GitHub."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs_site import build
from docs_site.build import CLONES_PAGE, ROOT, WRITTEN, BuildError
from docs_site.clone_check import dead_links
from docs_site.reference import PAGES


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[a](docs/b.md) [b](docs/b.md#so-it-is--really) [c](https://example.org/x#y) ![d](docs/d.svg)", []),
        ("[a](docs/b.md#a-link-and-code-1)", []),
        ("# Here\n[a](#here) `[b](no.md)`\n```\n[c](no.md)\n```\n<!-- [d](no.md) -->", []),
        ("[a](no.md)", ["README.md refers to no.md: no such file"]),
        ("![a](docs/no.svg)", ["README.md refers to docs/no.svg: no such file"]),
        ("[two\nlines](docs/b.md#nowhere)", ["README.md refers to docs/b.md#nowhere: no such heading"]),
        ("[a](#nowhere)", ["README.md refers to #nowhere: no such heading"]),
    ],
)
def test_dead_links(tmp_path: Path, text: str, expected: list[str]) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "d.svg").touch()
    headings = "# So it is: *really*?\n\n## So it is & really\n\n## A [link](b.md) and `code`\n\n## A link and code\n"
    (tmp_path / "docs" / "b.md").write_text(headings)
    (tmp_path / "README.md").write_text(text)
    assert list(dead_links(tmp_path)) == expected


def test_no_link_of_the_repository_is_dead_in_a_clone() -> None:
    assert list(dead_links(ROOT)) == []


def test_links_to_the_reference_lead_to_the_generated_pages_on_the_site() -> None:
    written = WRITTEN.joinpath(CLONES_PAGE).read_text()
    for path in PAGES:
        name = Path(path).stem
        assert f"\n`{name}`: " in written
        page = build._on_the_site(f"[a](reference.md#{name}) [b](../reference.md#{name})".encode())
        assert page.decode() == f"[a]({path}) [b](../{path})"
    with pytest.raises(BuildError, match=r"there is no page docs/reference/nothing\.md"):
        build._on_the_site(b"[a](reference.md#nothing)")

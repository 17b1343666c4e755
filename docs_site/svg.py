"""Write SVG that is readable on light and on dark pages: a card with its own background, which follows the system."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

_STYLE = """
text { font-family: system-ui, sans-serif; font-size: 13px; fill: #1f2328 }
.card { fill: #ffffff; stroke: #d0d7de }
.shade { fill: #eaeef2 }
.line { stroke: #57606a; fill: none; stroke-width: 1.4 }
.head { fill: #57606a }
.box { fill: #ddf4ff; stroke: #0969da }
.first { fill: #0969da }
.second { fill: #bf8700 }
.small { font-size: 12px; fill: #57606a }
.title { font-size: 15px; font-weight: 600 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 }
.card { fill: #0d1117; stroke: #30363d }
.shade { fill: #21262d }
.line { stroke: #8d96a0 }
.head { fill: #8d96a0 }
.box { fill: #12263f; stroke: #4493f8 }
.first { fill: #4493f8 }
.second { fill: #d29922 }
.small { fill: #8d96a0 }
}
"""


def document(width: float, height: float, parts: Iterable[str], title: str) -> str:
    """Return an SVG document. `title` is its name for screen readers."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
            f'viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(title)}">',
            f"<style>{_STYLE}</style>",
            f'<rect class="card" x="0.5" y="0.5" width="{width - 1:.0f}" height="{height - 1:.0f}" rx="8"/>',
            *parts,
            "</svg>",
            "",
        ]
    )


def label(x: float, y: float, words: str, *, anchor: str = "start", kind: str = "") -> str:
    """Return a text. `anchor` is `start`, `middle` or `end`, `kind` a class of the style."""
    classes = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{classes}>{escape(words)}</text>'


def bar(x: float, y: float, width: float, height: float, kind: str) -> str:
    """Return a filled rectangle."""
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="2"/>'

"""Write SVG that is readable on light and on dark pages: a card with its own background, which follows the system."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

_STYLE = """
text { font-family: system-ui, sans-serif; font-size: 13px; fill: #1f2328 }
.card { fill: #ffffff; stroke: #d0d7de }
.ground { fill: #ffffff }
.shade { fill: #eaeef2 }
.line { stroke: #57606a; fill: none; stroke-width: 1.4 }
.head { fill: #57606a }
.box { fill: #ddf4ff; stroke: #0969da }
.first { fill: #0969da }
.second { fill: #bf8700 }
.curve-first { stroke: #0969da; fill: none; stroke-width: 2 }
.curve-second { stroke: #bf8700; fill: none; stroke-width: 2 }
.curve-third { stroke: #8250df; fill: none; stroke-width: 2; stroke-dasharray: 6 4 }
.curve-fourth { stroke: #1a7f37; fill: none; stroke-width: 2; stroke-dasharray: 2 4 }
.lost { stroke: #cf222e; fill: none; stroke-width: 1.4; stroke-dasharray: 5 4 }
.wrong { fill: #cf222e }
.small { font-size: 12px; fill: #57606a }
.title { font-size: 15px; font-weight: 600 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 }
.card { fill: #0d1117; stroke: #30363d }
.ground { fill: #0d1117 }
.shade { fill: #21262d }
.line { stroke: #8d96a0 }
.head { fill: #8d96a0 }
.box { fill: #12263f; stroke: #4493f8 }
.first { fill: #4493f8 }
.second { fill: #d29922 }
.curve-first { stroke: #4493f8 }
.curve-second { stroke: #d29922 }
.curve-third { stroke: #a371f7 }
.curve-fourth { stroke: #3fb950 }
.lost { stroke: #f85149 }
.wrong { fill: #f85149 }
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


def line(x1: float, y1: float, x2: float, y2: float, kind: str = "line") -> str:
    """Return a straight line."""
    return f'<path class="{kind}" d="M{x1:.1f} {y1:.1f} L{x2:.1f} {y2:.1f}"/>'

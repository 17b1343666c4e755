"""Small pieces of SVG for the console's drawings. Every text is escaped. Colours come from the style sheet."""

from __future__ import annotations

from collections.abc import Iterable

from markupsafe import escape

CHARACTER = 7.2
"""The width of a character of a label, in units of the drawing, about."""


def tag(name: str, inner: str = "", /, **attributes: object) -> str:
    """Return an element. `class_` is the class, and `_` in other names of attributes is `-`."""
    parts = [
        f' {"class" if key == "class_" else key.replace("_", "-")}="{escape(_plain(value))}"'
        for key, value in attributes.items()
        if value is not None
    ]
    return f"<{name}{''.join(parts)}>{inner}</{name}>" if inner else f"<{name}{''.join(parts)}/>"


def text(x: float, y: float, words: str, **attributes: object) -> str:
    """Return a text."""
    return tag("text", str(escape(words)), x=x, y=y, **attributes)


def title(words: str) -> str:
    """Return what a browser shows while the pointer is over the element around it."""
    return tag("title", str(escape(words)))


def link(target: str, inner: str, label: str) -> str:
    """Return a link around other elements. `label` is its text for a screen reader and for the pointer."""
    return tag("a", title(label) + inner, href=target, aria_label=label)


def drawing(width: float, height: float, label: str, inner: Iterable[str], class_: str) -> str:
    """Return a whole drawing. `label` says in words what it shows."""
    return tag(
        "svg",
        title(label) + "".join(inner),
        viewBox=f"0 0 {_plain(width)} {_plain(height)}",
        role="group",
        aria_label=label,
        class_=class_,
    )


def width_of(words: str) -> float:
    """Return about how wide a label is."""
    return len(words) * CHARACTER


def _plain(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)

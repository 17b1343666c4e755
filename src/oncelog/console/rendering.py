"""Turn pages into HTML. Jinja escapes every value; only drawings of `figures` and rendered content are HTML already."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from oncelog.console import formats
from oncelog.console.model import Page, PageError
from oncelog.console.watches import Snapshot

NAVIGATION = (
    ("Cluster", "/"),
    ("Topics", "/topics"),
    ("Transactions", "/transactions"),
    ("Producers", "/producers"),
    ("Groups", "/groups"),
    ("Spark sinks", "/sinks"),
    ("Access", "/access"),
    ("Settings", "/settings"),
)


def environment() -> Environment:
    """Return the templates of this package, with the filters of `formats`."""
    made = Environment(
        loader=PackageLoader("oncelog.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "number": formats.number,
        "size": formats.size,
        "duration": formats.duration,
        "moment": formats.moment,
        "cell": formats.cell,
    }
    made.globals |= {"address": formats.address, "query": urlencode, "NAVIGATION": NAVIGATION}
    return made


class Renderer:
    """Render pages, and the frame around them. `footer` has what every page shows about the console itself."""

    def __init__(self, bootstrap: str, *, changes: bool, logout: bool) -> None:
        self._templates = environment()
        self._frame = {"bootstrap": bootstrap, "changes": changes, "logout": logout}

    def content(self, page: Page) -> str:
        """Return the HTML of a page without its frame. It is the same for all viewers."""
        figures = {name: Markup(svg) for name, svg in page.figures.items()}
        template = self._templates.get_template(page.template)
        return self.part("above.html", page=page) + template.render(
            page=page, facts=page.facts, figures=figures, changes=self._frame["changes"], **page.extra
        )

    def document(
        self, title: str, content: str, path: str, *, notice: str = "", live: bool = False, **more: Any
    ) -> str:
        """Return a whole document. The script of a `live` page asks its address for events.

        `more` may have `at_ms`, the time of the content, `cost`, and `json_query`, the query of the same page as JSON.
        """
        parts = {"title": title, "content": Markup(content), "path": path, "live": live}
        absent = {"at_ms": None, "loading": False, "cost": "", "json_query": ""}
        return self._templates.get_template("frame.html").render(
            **parts, notice=Markup(notice), **{**absent, **self._frame, **more}
        )

    def error(self, page_error: PageError) -> str:
        """Return the content of a page that says why there is no other."""
        return self._templates.get_template("error.html").render(page_error=page_error)

    def notice(self, state: Snapshot) -> str:
        """Return the line above a page that is out of date, or nothing."""
        if state.page_error is None:
            return ""
        if state.page is None:
            return self.error(state.page_error)
        return self._templates.get_template("notice.html").render(page_error=state.page_error, at_ms=state.at_ms)

    def part(self, template: str, **values: Any) -> str:
        """Return the HTML of another template of the package."""
        return self._templates.get_template(template).render(**values)

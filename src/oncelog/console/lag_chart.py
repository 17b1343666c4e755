"""Draw the lag of a group since somebody looks at it. No I/O."""

from __future__ import annotations

from collections.abc import Sequence

from oncelog.console import svg
from oncelog.console.formats import duration, number

WIDTH, HEIGHT, LEFT, BELOW = 1000.0, 120.0, 70.0, 18.0


def draw(points: Sequence[tuple[int, int, int]]) -> str:
    """Return the drawing. A point is its time in ms, the lag to the LSO, and the lag to the high watermark."""
    if not points:
        return ""
    if len(points) == 1:
        points = [points[0], (points[0][0] + 1, *points[0][1:])]
    first, last = points[0][0], max(points[-1][0], points[0][0] + 1)
    top = max(1, *(max(stable, high) for _, stable, high in points))

    def place(at: int, lag: int) -> str:
        x = LEFT + (WIDTH - LEFT - 8) * (at - first) / (last - first)
        y = 8 + (HEIGHT - BELOW - 16) * (1 - lag / top)
        return f"{x:.1f} {y:.1f}"

    base = HEIGHT - BELOW - 8
    parts = [
        svg.tag("path", class_="grid", d=f"M{LEFT} 8H{WIDTH - 8}M{LEFT} {base}H{WIDTH - 8}"),
        svg.text(LEFT - 8, 12, number(top), class_="tick-label", text_anchor="end"),
        svg.text(LEFT - 8, base + 4, "0", class_="tick-label", text_anchor="end"),
        svg.text(LEFT, HEIGHT - 4, f"{duration(last - first)} ago", class_="tick-label"),
        svg.text(WIDTH - 8, HEIGHT - 4, "now", class_="tick-label", text_anchor="end"),
    ]
    for index, class_ in ((2, "lag high"), (1, "lag low")):
        path = "M" + "L".join(place(point[0], point[index]) for point in points)
        parts.append(svg.tag("path", class_=class_, d=path))
    label = f"Lag now: {points[-1][1]} to the last stable offset, {points[-1][2]} to the high watermark"
    return svg.drawing(WIDTH, HEIGHT, label, parts, "chart")

"""Mapped pages of a simulated file: they show what the file contains now, not what it contained when it was mapped."""

from __future__ import annotations


class Pages(bytearray):
    """The bytes of a file from `pos` on. A slice of `memoryview(pages)` belongs to them, see `pages_of`."""

    pos: int
    there: int
    """How many of the bytes the file contains. On a real machine, SIGBUS ends a process that reads the others."""
    changed = False
    """Whether some byte has changed since the file was mapped."""

    @classmethod
    def map(cls, data: memoryview, pos: int) -> Pages:
        """Map bytes of a file."""
        pages = cls(data)
        pages.pos = pos
        pages.there = len(pages)
        return pages

    def refresh(self, file: bytearray) -> None:
        """Show the present content of the file. Bytes that the file no longer has are inverted."""
        found = file[self.pos : self.pos + len(self)]
        lost = range(len(found), self.there)
        self.changed |= bool(lost) or self[: len(found)] != found
        self[: len(found)] = found
        for index in lost:
            self[index] ^= 0xFF
        self.there = len(found)


def pages_of(data: object) -> Pages | None:
    """Return the mapped pages that a buffer shows, or None for other bytes."""
    pages = data.obj if isinstance(data, memoryview) else None
    return pages if isinstance(pages, Pages) else None

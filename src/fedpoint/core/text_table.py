"""How does a table look in plain text? Columns as wide as their widest cell; numbers to the right."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]], left: int = 1, ruled: bool = True) -> list[str]:
    """The lines of a table whose first row is its heading; the first `left` columns are words.

    >>> print(*aligned([["method", "rounds"], ["FedAvg", "12"]]), sep="\\n")
    method  rounds
    ------  ------
    FedAvg      12
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        put = [c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True))]
        return "  ".join(put).rstrip()

    rule = ["  ".join("-" * w for w in widths)] if ruled else []
    return [line(rows[0]), *rule, *map(line, rows[1:])]

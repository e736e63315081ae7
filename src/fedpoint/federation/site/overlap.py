"""Would two studies together tell of a few rows? Sums over all rows and sums over all but one give that one away.

A leader can have both: in the second study it reads a column with one gap more, and rows with gaps are dropped. So what
was approved on the same file is compared, row by row, before a study is.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fedpoint.core.numbers import counted
from fedpoint.data.floor import Floor
from fedpoint.federation.site.engagement import Engagement, engagements


def few_between(kit: Path, part: Engagement, data: Path | None, floor: Floor) -> list[str]:
    """What a study and those approved before it, on the same file, would tell of too few rows; empty where nothing."""
    table = part.study.table
    if table is None or data is None:
        return []
    own, said = table.kept(data), []
    for one in _others(kit, part, data):
        before = one.study.table
        if before is None or (table.keeps_all and before.keeps_all):
            continue
        other = before.kept(data)
        for these, those, more, less in ((own, other, part, one), (other, own, one, part)):
            rows = int((these & ~those).sum())
            if 0 < rows < floor.rows:
                said.append(
                    f"{more.title} has {counted(rows, 'row')} that {less.title} leaves out: both together tell of "
                    f"these alone, and the floor is {floor.rows}; fill the gaps of its columns, or ask for "
                    'missing = "mean"'
                )
    return said


def _others(kit: Path, part: Engagement, data: Path) -> Iterator[Engagement]:
    """What was approved here on the same file."""
    for one in engagements(kit):
        if one.approved and one.title != part.title:
            file = one.consent().data
            if file is not None and Path(file).resolve() == data.resolve():
                yield one


__all__ = ["few_between"]

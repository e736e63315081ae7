"""Of how few rows may anything leave a site? The floor is the site's own, and no study can lower it."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from fedpoint.core.arguments import checked_methods
from fedpoint.core.errors import FedpointError

LEAST = 2  # rows: the mean of one is the row


@checked_methods
@dataclass(frozen=True)
class Floor:
    """The fewest rows that anything which leaves a site is made of.

    Args:
        rows: of the file, of the values of a column, and behind a message.
        per_category: rows of each category that the site has.
        per_class: rows of each class that the site has.
    """

    rows: int = 20
    per_category: int = 5
    per_class: int = 5

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            least = LEAST if name == "rows" else 1
            if type(value) is not int or value < least:
                raise FedpointError(f"the floor's {name} = {value!r} must be a whole number, at least {least}")

    def plain(self) -> dict[str, int]:
        return asdict(self)


DEFAULT = Floor()

"""Which lectures does the library follow? Their numbers, which the code uses, and how readers know them."""

from __future__ import annotations

import re
from typing import NamedTuple


class Lecture(NamedTuple):
    """A lecture, as it is cited."""

    authors: str
    title: str

    def __str__(self) -> str:
        return f"{self.authors}, {self.title}"


LECTURES = {
    "000": Lecture("Vlaski and Sayed", "Learning with a Fusion Center"),
    "001": Lecture("Mangold", "Taming Heterogeneity in Federated Linear Stochastic Approximation"),
    "002": Lecture("Baranwal", "Generate Update Rule"),
    "003": Lecture("Jung", "FL Algorithms"),
    "004": Lecture("Chang", "Federated Optimization"),
}


def named(where: str) -> str:
    """Places in the lectures, with authors and titles for numbers.

    Args:
        where: numbers of lectures, each with what is meant of it; "" or "-" for none.

    >>> named("003 (FedProx), 004 (2)-(6)")
    'Jung, FL Algorithms (FedProx); Chang, Federated Optimization (2)-(6)'
    """
    places = [re.match(r"(\d{3})(.*)", place) for place in re.split(r", (?=\d{3}\b)", where)]
    return "; ".join(f"{LECTURES[place[1]]}{place[2]}" for place in places if place)


def by_authors(where: str) -> str:
    """The same, without titles: for tables.

    Args:
        where: as above.

    >>> by_authors("000 (40)"), by_authors("004 theorem 1")
    ('Vlaski and Sayed (40)', 'Chang theorem 1')
    """
    return re.sub(r"\b\d{3}\b(?!\))", lambda found: LECTURES[found[0]].authors, where)


__all__ = ["LECTURES", "Lecture", "by_authors", "named"]

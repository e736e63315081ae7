"""A publication, as BibTeX wants it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedpoint.core.arguments import checked

if TYPE_CHECKING:  # asked, not known: these lie above
    pass


@checked
@dataclass(frozen=True)
class Reference:
    """A publication, with what a BibTeX entry needs.

    Args:
        key: the key of the BibTeX entry.
        authors: "Family, Given and Family, Given", as BibTeX wants them.
        title: of the publication.
        venue: conference, journal or repository.
        year: of publication.
        kind: "inproceedings", "article" or "misc".
    """

    key: str
    authors: str
    title: str
    venue: str
    year: int
    kind: str = "inproceedings"  # or "article", "misc"

    def bibtex(self) -> str:
        where = {"inproceedings": "booktitle", "article": "journal", "misc": "howpublished"}[self.kind]
        return (
            f"@{self.kind}{{{self.key},\n  author = {{{self.authors}}},\n  title = {{{self.title}}},\n"
            f"  {where} = {{{self.venue}}},\n  year = {{{self.year}}}\n}}"
        )

    def text(self) -> str:
        authors = ", ".join(" ".join(reversed(name.split(", "))) for name in self.authors.split(" and "))
        return f"{authors}. {self.title}. {self.venue}, {self.year}."

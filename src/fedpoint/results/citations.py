"""What is to be cited? The publications behind methods, participations and the runs of a folder, as BibTeX."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fedpoint import __version__
from fedpoint.algorithms.catalogue import card_of, makers
from fedpoint.algorithms.references import LI_CONVERGENCE, RIZK
from fedpoint.core.reference import Reference
from fedpoint.core.types import Plain
from fedpoint.store.folder import RunFolder

SCHEMES = {"ByWeight": LI_CONVERGENCE, "Importance": RIZK}


def bibtex(references: Iterable[Reference]) -> str:
    """BibTeX of the publications, each once, and of fedpoint."""
    return "\n\n".join([*{r.key: r.bibtex() for r in references}.values(), _fedpoint()])


def of_method(name: str) -> list[Reference]:
    """The publications behind an algorithm or a preset."""
    return list(card_of(name).references)


def of_table(algorithm: Plain) -> list[Reference]:
    """The publications behind an algorithm in plain types; none for the user's own."""
    name = str(algorithm["name"] if isinstance(algorithm, dict) else algorithm)
    return of_method(name) if name in makers() else []


def of_run(folder: Path) -> list[Reference]:
    """The publications behind the run in a folder."""
    config = RunFolder.open(folder).config
    said = config.get("experiment") or config  # a file may name a preset
    return [*of_table(said["algorithm"]), *of_scheme(config.get("participation"))]


def of_scheme(description: Plain) -> list[Reference]:
    """The publications behind a participation in plain types, and behind one that it is around."""
    if not isinstance(description, dict):
        return []
    own = SCHEMES.get(str(description.get("class")))
    return [*([] if own is None else [own]), *of_scheme(description.get("scheme"))]


def _fedpoint() -> str:
    return (
        "@software{fedpoint,\n  author = {The fedpoint authors},\n"
        "  title = {fedpoint: federated optimisation that knows where it will end},\n"
        f"  version = {{{__version__}}}\n}}"
    )

"""Tables that stand in the documentation, from the catalogue: they cannot rot."""

from fedpoint.core.algorithm import CATALOGUE


def algorithms_markdown() -> str:
    """The catalogue as a Markdown table."""
    import fedpoint.algorithms  # noqa: F401 - importing the methods fills the catalogue

    rows = [
        f"| `{card.name}` | {card.title} | {card.summary} | {card.limit} | {card.taught or '-'} |"
        for _, card in sorted(CATALOGUE.items())
    ]
    return "\n".join(["| name | method | what it does | where it ends | lecture |", "|---|---|---|---|---|", *rows])

"""How does a browser show the formulas of the docstrings? LaTeX, as much as they use of it, as MathML."""

from __future__ import annotations

import re
from html import escape

from fedpoint.core.errors import FedpointError

GREEK = {
    "alpha": "α",
    "beta": "β",
    "gamma": "γ",
    "delta": "δ",
    "eta": "η",
    "theta": "θ",
    "kappa": "κ",
    "lambda": "λ",
    "mu": "μ",
    "nu": "ν",
    "xi": "ξ",
    "pi": "π",
    "rho": "ρ",
    "sigma": "σ",
    "tau": "τ",
    "phi": "φ",
    "psi": "ψ",
    "omega": "ω",
    "Delta": "Δ",
    "Psi": "Ψ",
    "Phi": "Φ",
    "Sigma": "Σ",
}
OPERATORS = {
    "leftarrow": "←",
    "to": "→",
    "in": "∈",
    "le": "≤",
    "ge": "≥",
    "sim": "∼",
    "approx": "≈",
    "star": "⋆",
    "top": "⊤",
    "nabla": "∇",
    "ldots": "…",
    "cdot": "·",
    "times": "×",
    "{": "{",
    "}": "}",
}
WORDS = {"min", "max", "arg", "log", "exp"}
SPACES = {"qquad": 2.0, "quad": 1.0, ",": 0.17, " ": 0.3, ";": 0.28}
ACCENTS = {"hat": "^", "bar": "¯", "tilde": "~"}
BIG = {"sum": "∑", "prod": "∏"}
TOKEN = re.compile(r"\\[A-Za-z]+|\\.|\d+(?:\.\d+)?|[A-Za-z]|\S", re.S)


def formula(latex: str, block: bool = True) -> str:
    """MathML of one formula.

    >>> formula(r"w^+ = w", block=False)
    '<math><msup><mi>w</mi><mo>+</mo></msup><mo>=</mo><mi>w</mi></math>'
    """
    display = ' display="block"' if block else ""
    return f"<math{display}>{''.join(_Reader(latex).row())}</math>"


def text(source: str) -> str:
    """A sentence with formulas between dollars, as HTML.

    >>> text("the step $x < y$ & more")
    'the step <math><mi>x</mi><mo>&lt;</mo><mi>y</mi></math> &amp; more'
    """
    parts = re.split(r"(?<!\$)\$([^$]+)\$(?!\$)", source)
    return "".join(formula(part, block=False) if i % 2 else _escaped(part) for i, part in enumerate(parts))


def _escaped(part: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(part))


class _Reader:
    def __init__(self, latex: str):
        self.source, self.at = latex, 0
        # What is written in words keeps its blanks; all else has none.
        self.words = re.findall(r"\\text\{([^}]*)\}", latex)
        self.tokens = TOKEN.findall(re.sub(r"\\text\{[^}]*\}", r"\\text ", latex))

    def _next(self) -> str:
        if self.at >= len(self.tokens):
            raise FedpointError(f"the formula {self.source!r} ends too early")
        self.at += 1
        return self.tokens[self.at - 1]

    def row(self, end: str | None = None) -> list[str]:
        """Everything up to `end`."""
        found: list[str] = []
        while self.at < len(self.tokens) and self.tokens[self.at] != end:
            found.append(self._scripts())
        if end is not None:
            self._next()
        return found

    def _scripts(self) -> str:
        """One thing with its indices and exponents."""
        base, big = self._one()
        below = above = None
        while self.at < len(self.tokens) and self.tokens[self.at] in ("_", "^"):
            which = self._next()
            inside = self._one()[0]
            below, above = (inside, above) if which == "_" else (below, inside)
        names = ("munder", "mover", "munderover") if big else ("msub", "msup", "msubsup")
        if below is not None and above is not None:
            return f"<{names[2]}>{base}{below}{above}</{names[2]}>"
        if below is None and above is None:
            return base
        name = names[0] if above is None else names[1]
        return f"<{name}>{base}{below or above}</{name}>"

    def _group(self) -> str:
        return self._one()[0]

    def _one(self) -> tuple[str, bool]:
        """One thing, and whether its indices stand below and above it."""
        token = self._next()
        if token == "{":
            inside = self.row("}")
            return (inside[0] if len(inside) == 1 else f"<mrow>{''.join(inside)}</mrow>"), False
        if not token.startswith("\\"):
            if token.isalpha():
                return f"<mi>{token}</mi>", False
            if token[0].isdigit():
                return f"<mn>{token}</mn>", False
            fixed = ' stretchy="false"' if token in "()[]" else ""
            if token == "|":  # left or right, it cannot be told: no space on either side
                fixed = ' stretchy="false" lspace="0" rspace="0"'
            return f"<mo{fixed}>{escape({'-': '−'}.get(token, token))}</mo>", False
        name = token[1:]
        if name in GREEK:
            return f"<mi>{GREEK[name]}</mi>", False
        if name in BIG:
            return f"<mo>{BIG[name]}</mo>", True
        if name in WORDS:
            return f"<mo>{name}</mo>", name in ("min", "max")
        if name in OPERATORS:
            return f"<mo>{OPERATORS[name]}</mo>", False
        if name in SPACES:
            return f'<mspace width="{SPACES[name]}em"></mspace>', False
        if name in ACCENTS:
            return f'<mover accent="true">{self._group()}<mo>{ACCENTS[name]}</mo></mover>', False
        if name == "frac":
            over, under = self._group(), self._group()
            return f"<mfrac>{over}{under}</mfrac>", False
        if name == "sqrt":
            return f"<msqrt>{self._group()}</msqrt>", False
        if name == "text":
            return f"<mtext>{escape(self.words.pop(0)).replace(' ', '&#160;')}</mtext>", False
        if name in ("Big", "big"):
            return f'<mo stretchy="true" minsize="1.6em">{escape(self._next())}</mo>', False
        raise FedpointError(f"the formula {self.source!r} has {token}, which is not known here")

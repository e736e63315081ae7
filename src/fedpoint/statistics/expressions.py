"""What may stand in a formula? Columns, factors and functions of single rows: nothing that looks at other rows, and no
other code, as formulas come from files too."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import formulaic
from formulaic.errors import FormulaicError
from formulaic.formula import StructuredFormula
from formulaic.parser.types import Factor

from fedpoint.core.errors import FedpointError

FUNCTIONS = ("I", "exp", "log", "log10", "log2")  # formulaic's own, row by row
NUMPY = ("abs", "cos", "exp", "log", "log10", "log1p", "log2", "maximum", "minimum", "sin", "sqrt", "square", "where")
CONTRASTS = ("helmert", "sum", "treatment", "diff", "poly", "Treatment", "Sum", "Helmert", "Diff", "Poly")
POOLED = ("bs", "center", "cc", "cr", "cs", "lag", "poly", "scale", "standardize", "te")  # these look at all rows
ROW_BY_ROW = "write what can be worked out row by row, such as C(x), np.log(x), I(x**2), a:b"
PLAIN = (ast.BinOp, ast.UnaryOp, ast.Constant, ast.Compare, ast.operator, ast.unaryop, ast.cmpop, ast.Load)
QUOTED = re.compile("`([^`]*)`")


@dataclass
class Parsed:
    """A formula, the columns that it names, and which of them are factors."""

    text: str
    formula: formulaic.Formula
    columns: list[str] = field(default_factory=list)
    factors: list[str] = field(default_factory=list)

    @property
    def has_response(self) -> bool:
        return isinstance(self.formula, StructuredFormula)


def parsed(text: str) -> Parsed:
    """The formula, or a refusal that says what in it cannot be used."""
    try:
        found = Parsed(text, formulaic.Formula(text))
    except (FormulaicError, SyntaxError) as error:
        raise FedpointError(f"formula {text!r}: {plain(error)}") from None
    for factor in _factors(found):
        if factor.eval_method is Factor.EvalMethod.LOOKUP:
            found.columns.append(factor.expr)
        elif factor.eval_method is Factor.EvalMethod.PYTHON:
            _read(found, factor.expr)
    found.columns = sorted(set(found.columns))
    return found


def plain(error: Exception) -> str:
    """The first line of a message, without colours of a terminal."""
    return re.sub("\x1b\\[[0-9;]*m|[⧛⧚]", "", str(error)).strip().split("\n")[0]


def _factors(found: Parsed) -> Iterator[Factor]:
    formula = found.formula
    parts = [formula.lhs, formula.rhs] if found.has_response else [formula]
    return (factor for part in parts for term in part for factor in term.factors)


def _read(found: Parsed, expression: str) -> None:
    """Note the columns of an expression of Python, and refuse what must not stand there."""
    quoted: dict[str, str] = {}

    def stand_in(match: re.Match[str]) -> str:
        quoted[f"_column_{len(quoted)}"] = match[1]
        return f"_column_{len(quoted) - 1}"

    try:
        tree = ast.parse(QUOTED.sub(stand_in, expression), mode="eval").body
    except SyntaxError:
        raise FedpointError(f"formula {found.text!r}: {expression} is not an expression") from None
    _walk(found, tree, quoted)


def _walk(found: Parsed, node: ast.AST, quoted: dict[str, str]) -> None:
    if isinstance(node, ast.Name):
        found.columns.append(quoted.get(node.id, node.id))
        return
    inside: list[ast.AST]
    if isinstance(node, ast.Call):
        name = ast.unparse(node.func)
        if name == "C":
            _factor(found, node, quoted)
            return
        _check_function(found, name)
        inside = [*node.args, *(keyword.value for keyword in node.keywords)]
    elif isinstance(node, PLAIN):
        inside = list(ast.iter_child_nodes(node))
    else:
        raise FedpointError(f"formula {found.text!r}: {ast.unparse(node)} cannot be used; {ROW_BY_ROW}")
    for part in inside:
        _walk(found, part, quoted)


def _check_function(found: Parsed, name: str) -> None:
    if name in POOLED:
        raise FedpointError(
            f"formula {found.text!r}: {name}() depends on the rows of all sites together, and these stay where they "
            f"are; {ROW_BY_ROW}"
        )
    if name not in FUNCTIONS and name not in {f"np.{own}" for own in NUMPY}:
        known = ", ".join(("C", *FUNCTIONS, *(f"np.{own}" for own in NUMPY)))
        raise FedpointError(f"formula {found.text!r}: unknown function {name}; known are {known}")


def _factor(found: Parsed, call: ast.Call, quoted: dict[str, str]) -> None:
    """C(column), or C(column, contr.treatment("level"))."""
    column, *rest = (*call.args, *(keyword.value for keyword in call.keywords))
    if not isinstance(column, ast.Name):
        raise FedpointError(f"formula {found.text!r}: {ast.unparse(call)} must be C() of a column")
    found.columns.append(quoted.get(column.id, column.id))
    found.factors.append(found.columns[-1])
    for contrast in rest:
        values = [] if not isinstance(contrast, ast.Call) else [*contrast.args, *(k.value for k in contrast.keywords)]
        named = isinstance(contrast, ast.Call) and ast.unparse(contrast.func) in {f"contr.{c}" for c in CONTRASTS}
        if not named or not all(isinstance(value, ast.Constant) for value in values):
            raise FedpointError(
                f"formula {found.text!r}: {ast.unparse(contrast)} is not a contrast: write, for instance, "
                f'C({ast.unparse(column)}, contr.treatment("level"))'
            )

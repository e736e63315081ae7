"""Is it a column of dates? Then it is a number: days since 1970-01-01, the same for all agents and for new rows.

Dates are written as ISO 8601 has it, with a time and a zone or without, or with day, month and year in an order that
the column as a whole tells: 31/12/2020 cannot have its month first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import numpy as np

from fedpoint.core.numbers import evenly
from fedpoint.data.column import Column, and_more
from fedpoint.data.columns import BadTable

REFERENCE = "1970-01-01"
EPOCH, DAY = datetime(1970, 1, 1, tzinfo=UTC), 86400.0  # seconds of a day
TIME = r"(?:[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?)"
ISO = re.compile(rf"\d{{4}}-\d{{2}}-\d{{2}}{TIME}?")
ZONED = re.compile(rf"\d{{4}}-\d{{2}}-\d{{2}}{TIME}(?:Z|[+-]\d{{2}}:?\d{{2}})")
OTHER = re.compile(rf"(\d{{1,2}})([./-])(\d{{1,2}})\2(\d{{4}})({TIME}?)")
LOOKED_AT = 50  # words, of which none is a date where a column holds none to speak of


def _iso(word: str, written: re.Pattern[str] = ISO) -> float | None:
    if not written.fullmatch(word):
        return None
    try:
        moment = datetime.fromisoformat(word)
    except ValueError:  # the 30th of February
        return None
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    return (moment - EPOCH).total_seconds() / DAY


def _zoned(word: str) -> float | None:
    return _iso(word, ZONED)


def _ordered(word: str, day: int, month: int) -> float | None:
    """day, month: which of the two leading numbers they are."""
    found = OTHER.fullmatch(word)
    if found is None:
        return None
    numbers = (int(found[1]), int(found[3]))
    return _iso(f"{found[4]}-{numbers[month]:02d}-{numbers[day]:02d}{found[5]}")


FORMS: dict[str, Callable[[str], float | None]] = {
    "iso": _iso,
    "iso with zone": _zoned,
    "day first": lambda word: _ordered(word, 0, 1),
    "month first": lambda word: _ordered(word, 1, 0),
}


EXAMPLES = {
    "iso": "2020-12-31",
    "iso with zone": "2020-12-31T12:00Z",
    "day first": "31/12/2020",
    "month first": "12/31/2020",
}


def days(word: str, form: str) -> float | None:
    """Days since 1970-01-01 of a date that is written in this form, or as ISO dates are without a zone; None where it
    is not.

    >>> days("1970-01-03T12:00", "iso"), days("3.1.1970", "day first"), days("1970-01-03", "month first")
    (2.5, 2.0, 2.0)
    """
    found = FORMS[form](word)
    return _iso(word) if found is None and form in ("day first", "month first") else found


def forms_of(words: Sequence[str]) -> list[str]:
    """The forms in which all of these words are dates: several where the order of day and month is open.

    >>> forms_of(["01/02/2020", "03/04/2020"]), forms_of(["01/02/2020", "13/04/2020"]), forms_of(["new", "2020-01-01"])
    (['day first', 'month first'], ['day first'], [])
    """
    return [form for form, read in FORMS.items() if words and all(read(word) is not None for word in words)]


def as_days(column: Column, form: str) -> Column:
    """A column of such dates as numbers, NaN where one is missing or none."""
    if column.words is None:  # without any value
        return Column(np.full(len(column.values), np.nan))
    found = [days(word, form) for word in column.words]
    return Column(np.array([*(np.nan if d is None else d for d in found), np.nan])[column.values])


def possible_forms(name: str, column: Column) -> list[str]:
    """How the dates of a column may be written; empty where it holds none. Refused where most cells are dates."""
    if column.words is None:
        return []
    codes, counts = np.unique(column.values[~column.missing], return_counts=True)
    words = [column.words[code] for code in codes]
    if not any(read(words[i]) is not None for i in evenly(len(words), LOOKED_AT) for read in FORMS.values()):
        return []
    forms = forms_of(words)
    if forms:
        return forms
    fits = {form: np.array([read(word) is not None for word in words]) for form, read in FORMS.items()}
    most = max(fits.values(), key=lambda fit: counts[fit].sum())
    odd = int(counts[~most].sum())
    if 2 * odd >= counts.sum():
        return []
    first, such_as = int(np.isin(column.values, codes[~most]).argmax()), words[int(most.argmax())]
    raise BadTable(
        [
            (
                "features",
                f"column {name!r} holds dates such as {such_as!r}, but row {first + 1} is {column.text(first)!r}"
                f"{and_more(odd - 1)}: correct it, or name the column in categorical",
            )
        ]
    )


def form_of(name: str, column: Column) -> str | None:
    """How the dates of a column are written; None where it holds none. Refused where the order is open."""
    forms = possible_forms(name, column)
    if len(forms) > 1:
        raise BadTable([("features", open_order(name, repr(column.text(int((~column.missing).argmax())))))])
    return forms[0] if forms else None


def open_order(name: str, such_as: str) -> str:
    return (
        f"column {name!r} holds dates such as {such_as}, of which every one may have its day or its month first: write "
        "them as YYYY-MM-DD, or name the column in categorical"
    )


def note_of(name: str, column: Column, form: str) -> str:
    """What was made of a column of dates."""
    numbers = as_days(column, form).values
    ends = [_date(function(numbers)) for function in (np.nanmin, np.nanmax)]
    return f"column {name!r}: dates from {ends[0]} to {ends[1]}, {taken(form)}"


def taken(form: str) -> str:
    return f"taken as days since {REFERENCE}{' UTC' if form == 'iso with zone' else ''}"


def _date(number: float) -> str:
    return str(np.datetime64(REFERENCE) + np.timedelta64(int(np.floor(number)), "D"))

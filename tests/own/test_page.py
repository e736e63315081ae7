"""docs/own_method.md shows each mistake with the message that it really gives."""

import linecache
import re
import textwrap
from pathlib import Path

import pytest

import fedpoint as fp

PAGE = Path(__file__).parents[2] / "docs" / "own_method.md"
BLOCKS = re.compile(r"^```py\n(.*?)^```(?:\n\n```text\n(.*?)^```)?", re.M | re.S)
START, *MISTAKES = BLOCKS.findall(PAGE.read_text())
SCRIPT = "mine.py"


def execute(code, namespace):
    """As a script of the user's, whose lines are found."""
    linecache.cache[SCRIPT] = (len(code), None, code.splitlines(keepends=True), SCRIPT)
    exec(compile(code, SCRIPT, "exec"), namespace)


def message_of(code):
    namespace = {"__name__": "mine"}
    execute(START[0], namespace)
    with pytest.raises(fp.FedpointError) as caught:
        execute(code, namespace)
    return str(caught.value)


def rewritten(text):
    """The page with the messages as they are now: what `python tests/own/test_page.py` writes."""
    for code, said in MISTAKES:
        new = textwrap.fill("FedpointError: " + message_of(code), 118, break_on_hyphens=False) + "\n"
        text = text.replace(f"```py\n{code}```\n\n```text\n{said}```", f"```py\n{code}```\n\n```text\n{new}```")
    return text


def test_the_start_of_the_mistakes_is_right():
    execute(START[0], {"__name__": "mine"})
    assert not START[1] and len(MISTAKES) > 15


@pytest.mark.parametrize(("code", "said"), MISTAKES, ids=[re.findall(r"\w+", code)[1] for code, _ in MISTAKES])
def test_every_mistake_has_its_message(code, said):
    assert " ".join(said.split()) == "FedpointError: " + message_of(code)


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text()))

"""docs/own_method.md and docs/own_problem.md show each mistake with the message that it really gives."""

import linecache
import re
import textwrap
from pathlib import Path

import pytest

import fedpoint as fp

DOCS = Path(__file__).parents[2] / "docs"
BLOCKS = re.compile(r"^```py\n(.*?)^```(?:\n\n```text\n(.*?)^```)?", re.M | re.S)
PAGES = {name: BLOCKS.findall((DOCS / f"{name}.md").read_text()) for name in ("own_method", "own_problem")}
STARTS = {name: blocks[0] for name, blocks in PAGES.items()}
MISTAKES = [(name, code, said) for name, blocks in PAGES.items() for code, said in blocks[1:]]
SCRIPT = "mine.py"


def execute(code, namespace):
    """As a script of the user's, whose lines are found."""
    linecache.cache[SCRIPT] = (len(code), None, code.splitlines(keepends=True), SCRIPT)
    exec(compile(code, SCRIPT, "exec"), namespace)


def message_of(page, code):
    namespace = {"__name__": "mine"}
    execute(STARTS[page][0], namespace)
    with pytest.raises(fp.FedpointError) as caught:
        execute(code, namespace)
    return str(caught.value)


def rewritten(page, text):
    """The page with the messages as they are now: what `python tests/own/test_own_pages.py` writes."""
    for code, said in PAGES[page][1:]:
        new = textwrap.fill("FedpointError: " + message_of(page, code), 118, break_on_hyphens=False) + "\n"
        text = text.replace(f"```py\n{code}```\n\n```text\n{said}```", f"```py\n{code}```\n\n```text\n{new}```")
    return text


@pytest.mark.parametrize("page", PAGES)
def test_the_start_of_the_mistakes_is_right(page):
    execute(STARTS[page][0], {"__name__": "mine"})
    assert not STARTS[page][1] and len(PAGES[page]) > 14


@pytest.mark.parametrize(
    ("page", "code", "said"), MISTAKES, ids=[re.findall(r"class (\w+)|$", code)[-2] for _, code, _ in MISTAKES]
)
def test_every_mistake_has_its_message(page, code, said):
    assert " ".join(said.split()) == "FedpointError: " + message_of(page, code)


if __name__ == "__main__":
    for page in PAGES:
        path = DOCS / f"{page}.md"
        path.write_text(rewritten(page, path.read_text()))

"""The documentation site: what it makes from cards and docstrings, the lectures' map, formulas."""

import importlib.util
import re
import sys
from functools import reduce
from pathlib import Path

import pytest

import fedpoint as fp
from fedpoint.core.lectures import LECTURES

ROOT = Path(__file__).resolve().parent.parent
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text()


@pytest.fixture(scope="module")
def site():
    found = importlib.util.spec_from_file_location("site_of_docs", ROOT / "docs" / "site.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_every_algorithm_has_a_page_with_what_its_card_says(site):
    cards = site.cards()
    assert {card.name for card in cards} == {
        name for name, card in fp.CATALOGUE.items() if card.cls.__module__.startswith("fedpoint.algorithms")
    }
    nav = (ROOT / "mkdocs.yml").read_text()
    for card in cards:
        page = site.algorithm_page(card)
        for text in (card.title, card.limit, card.fails):
            assert text in page if text else card.name == "fedopt", (card.name, text)
        assert (card.taught in page) if card.lecture else "| **Lecture** |" not in page
        assert "$$" in page, f"{card.name}: no formula"
        assert all(reference.title in page for reference in card.references)
        assert f"algorithms/{card.name}.md" in nav and ("f.plot(" in page or card.name == "fedexp")  # has no forecast


def test_every_page_is_in_the_navigation():
    nav = (ROOT / "mkdocs.yml").read_text()
    assert [page.name for page in (ROOT / "docs").glob("*.md") if f" {page.name}\n" not in nav] == []


def test_the_api_page_names_everything_public(site):
    page = "".join(site.site_api.pages().values())
    assert all(f"`fp.{name}`" in page for name in fp._HOME)
    assert "0x" not in page  # no addresses of objects


def test_the_lectures_map_leads_to_functions():
    text = (ROOT / "docs" / "lectures.md").read_text()
    names = set(re.findall(r"`fp\.([\w.]+)", text))
    assert len(names) > 40
    for name in names:
        reduce(getattr, name.split("."), fp)


def equations(text: str) -> set[int]:
    """The numbers of (7) and (7)-(9)."""
    found = re.findall(r"\((\d+)\)(?:-\((\d+)\))?", text)
    return {n for first, last in found for n in range(int(first), int(last or first) + 1)}


def test_the_lectures_map_has_every_equation_that_the_code_names():
    text = (ROOT / "docs" / "lectures.md").read_text()
    sections = dict(re.findall(r"^## [^\n]*\n\nLecture (00\d)(.*?)(?=^## |\Z)", text, re.M | re.S))
    assert [f"## {LECTURES[number]}" for number in sections] == re.findall(r"^## .*", text, re.M)
    mapped = {lecture: equations(text) for lecture, text in sections.items()}
    named = {lecture: set() for lecture in mapped}
    sources = [path.read_text() for path in (ROOT / "src" / "fedpoint").rglob("*.py")]
    for text in [" ".join(source.split()) for source in sources]:
        # "Lecture 000, (57)-(59), (72)", "000 (40)": a lecture and the equations that follow it.
        for lecture, list_ in re.findall(r"\b(00[0-4]),? (?:after )?((?:\(\d+\)(?:-\(\d+\))?(?:, )?)+)", text):
            named[lecture] |= equations(list_)
    assert len(named["000"]) > 30 and named["004"]
    for lecture, numbers in named.items():
        assert not numbers - mapped[lecture], f"lecture {lecture}: {sorted(numbers - mapped[lecture])}"


def test_formulas_become_mathml_outside_code(site):
    made = site.with_mathml("a $x^2$ b `$5` \n```sh\necho $HOME $PATH\n```\n$$\\sum_k p_k$$ costs 3 $ and 4 $.")
    assert made.count("<math") == 2 and "$HOME $PATH" in made and "`$5`" in made
    for card in site.cards():
        assert "$$" not in site.with_mathml(site.algorithm_page(card))


def test_words_of_the_glossary_and_lectures_lead_there(site):
    text = (
        "# The floor\n\nA floor, `floor` and a floor; fields of w*; unbiased.\n\n```sh\nbias\n```\n\n(lecture 004, (6))"
    )
    made = site.explained(text, "algorithms/fedavg.md")
    assert made.startswith("# The floor\n\nA [floor](../glossary.md#floor), `floor` and a floor; [fields](")
    assert "of [w*](../glossary.md#w); unbiased." in made and "\nbias\n" in made
    assert '([lecture 004](../lectures.md "Chang, Federated Optimization"), (6))' in made
    assert site.explained("a floor", "glossary.md") == "a floor"
    anchors = {
        re.sub(r"[^a-z ]", "", h.lower()).strip().replace(" ", "-") for h in re.findall(r"^## (.*)", GLOSSARY, re.M)
    }
    assert set(site.TERMS.values()) <= anchors


def test_dead_links_are_found(tmp_path):
    sys.path.insert(0, str(ROOT / "docs"))
    pages = importlib.import_module("look_at_pages")
    (tmp_path / "a").mkdir()
    (tmp_path / "index.html").write_text(
        '<a href="a/#here">x</a> <a href="a/#gone">x</a> <a href="b/">x</a> <a id=top>'
    )
    (tmp_path / "a" / "index.html").write_text(
        '<h1 id="here"></h1> <a href="..#top">x</a> <a href="https://b.org">x</a>'
    )
    assert pages.dead_links(tmp_path) == ["index.html: a/#gone", "index.html: b/"]


@pytest.mark.slow
def test_the_site_builds_strictly(tmp_path):
    pytest.importorskip("mkdocs")
    import subprocess

    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "site" / "algorithms" / "scaffold" / "index.html").exists()
    tutorial = (tmp_path / "site" / "tutorial" / "index.html").read_text()
    assert tutorial.count("<svg") >= 3 and "forecast floor" in tutorial  # its cells were run

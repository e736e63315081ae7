"""What somebody who installed the package begins with: a file of one's own, and the examples."""

import re
from pathlib import Path

import fedpoint as fp

ROOT = Path(__file__).resolve().parents[2]


def test_a_new_file_can_be_run_and_is_never_written_over(cli):
    assert "fedpoint forecast mine.toml" in cli("new", "mine").stdout
    entries = fp.read("mine.toml")
    assert [entry.name for entry in entries] == ["FedAvg", "SCAFFOLD"]
    text = Path("mine.toml").read_text()
    assert "mine already exists" not in text and "{" not in text
    assert "mine.toml already exists" in cli("new", "mine.toml", status=2).stderr
    assert "cannot write" in cli("new", "no/where", status=2).stderr


def uncommented(text, heading):
    """The text with the table of this heading read too."""
    lines, inside = [], False
    for line in text.splitlines():
        inside = line == f"# [{heading}]" or (inside and line.startswith("# "))
        lines.append(line.removeprefix("# ") if inside else line)
    return "\n".join(lines)


def test_what_a_new_file_leaves_out_can_be_put_in(cli):
    cli("new", "mine")
    cli("examples", "table", "--out", ".")
    text = Path("mine.toml").read_text()
    Path("channel.toml").write_text(uncommented(text, "channel"))
    assert fp.read("channel.toml")[0].experiment.channel == fp.channel.Quantise(4)
    invented = re.search(r"^\[problem\]\n.*?\n\n", text, re.M | re.S).group()
    Path("rows.toml").write_text(uncommented(text.replace(invented, ""), "problem").replace("participation = 5", ""))
    assert fp.read("rows.toml")[0].experiment.problem.agents == 4


def test_examples_are_listed_and_copied_with_their_data(cli):
    listed = cli("examples").stdout
    names = {path.stem for path in (ROOT / "examples").glob("*.*")}
    assert names == {line.split()[0] for line in listed.splitlines()} - {"namespaces"}
    assert cli("examples", "table").stdout.split() == ["examples/table.toml", "examples/table.csv"]
    assert "examples/table.toml already exists" in cli("examples", "lab", "table", status=2).stderr
    assert not Path("examples/lab.toml").exists()  # all or nothing
    assert "did you mean 'drift'" in cli("examples", "drfit", status=2).stderr
    assert "give --out ." in cli("examples", "drift", ".", status=2).stderr and not Path("drift.toml").exists()
    assert cli("examples", "drift.toml").stdout.split() == ["examples/drift.toml"]
    cli("examples", "--all", "--out", "copies")
    copied = {path.relative_to("copies") for path in Path("copies").rglob("*") if path.is_file()}
    ours = {path.relative_to(ROOT / "examples") for path in (ROOT / "examples").rglob("*") if path.is_file()}
    assert copied == {path for path in ours if "__pycache__" not in path.parts}

"""Does a file hold its experiments: read, written, read again, the same?"""

from importlib import resources
from pathlib import Path

import numpy as np
import own_parts
import pytest

import fedpoint as fp
from fedpoint.config.file import NotRebuildable
from fedpoint.config.mistakes import Mistakes

EXAMPLES = sorted(path for path in (Path(__file__).parents[2] / "examples").glob("*.toml") if path.stem != "plan")
LABS = [resources.files("fedpoint.lab") / f"{name}.toml" for name in ("lecture000", "scafflsa")]
QUADRATIC = fp.problems.Quadratic(1.0, [[0.0], [1.0], [5.0]], noise=0.1)


@pytest.mark.parametrize("path", [*EXAMPLES, *LABS], ids=lambda path: path.name)
def test_files_are_read_and_written(path, tmp_path):
    entries = fp.read(path)
    assert len({entry.name for entry in entries}) == len(entries) >= 1
    fp.write(tmp_path / "again.toml", *entries)
    again = fp.read(tmp_path / "again.toml")
    assert [(e.name, e.rounds, e.stop) for e in again] == [(e.name, e.rounds, e.stop) for e in entries]
    for one, other in zip(entries, again, strict=True):
        assert other.experiment.describe() == one.experiment.describe()
    first, same = (fp.run(e[0].experiment.replace(repeats=1), rounds=2) for e in (entries, again))
    np.testing.assert_array_equal(first.history, same.history)


def test_experiments_of_python_are_written(tmp_path):
    one = fp.Experiment(
        fp.FedAvg(step=0.1), QUADRATIC, participation=2, channel=fp.channel.Cast("float16"), start=[3.0]
    )
    other = one.replace(algorithm=fp.Averaged(fp.Scaffold(step=0.1)), channel=None, seed=4)
    fp.write(tmp_path / "two.toml", one, other, rounds=7)
    text = (tmp_path / "two.toml").read_text()
    assert text.count("[problem") == 1 + text.count("[problem.given") and text.count("[[experiment]]") == 2
    read = fp.read(tmp_path / "two.toml")
    assert [e.rounds for e in read] == [7, 7]
    assert [e.experiment.describe() for e in read] == [one.describe(), other.describe()]


def test_a_run_folder_is_a_file_of_one_experiment(tmp_path):
    e = fp.Experiment(fp.FedAvg(step=0.1), QUADRATIC, participation=2, seed=3, start=[3.0])
    run = fp.run(e, rounds=5, folder=tmp_path / "run")
    with pytest.raises(fp.FedpointError, match="its data are not written down"):
        fp.read(tmp_path / "run" / "config.toml")
    (entry,) = fp.read(tmp_path / "run" / "config.toml", problem=QUADRATIC)
    assert entry.rounds == 5
    np.testing.assert_array_equal(fp.run(entry.experiment, rounds=entry.rounds).history, run.history)
    # A folder from a file holds that file's table, which builds its problem too.
    (tmp_path / "file.toml").write_text('[problem]\nkind = "quadratic"\n[algorithm]\nname = "fedavg"\nstep = 0.1\n')
    (entry,) = fp.read(tmp_path / "file.toml", rounds=3)
    from fedpoint.store.records import Place

    whole = fp.run(entry.experiment, rounds=3, folder=Place(tmp_path / "other", entry.content))
    (again,) = fp.read(tmp_path / "other" / "config.toml")
    np.testing.assert_array_equal(fp.run(again.experiment, rounds=again.rounds).history, whole.history)


def test_what_a_file_cannot_hold_is_said(tmp_path):
    e = fp.Experiment(fp.FedAvg(step=0.1), QUADRATIC, metrics={"far": lambda state: state.model.sum()})
    with pytest.warns(NotRebuildable, match=r"metrics.far: .*<lambda> is defined inside a function"):
        fp.write(tmp_path / "e.toml", e)
    with pytest.raises(Mistakes, match=r"metrics: .*<lambda>"):
        fp.read(tmp_path / "e.toml")


def test_code_of_the_users_own(tmp_path):
    e = fp.Experiment(own_parts.Dithered(step=0.1), QUADRATIC, metrics={"drift": own_parts.drift})
    fp.write(tmp_path / "own.toml", e)
    with pytest.raises(Mistakes, match="name its module in allow="):
        fp.read(tmp_path / "own.toml")
    (entry,) = fp.read(tmp_path / "own.toml", allow=["own_parts"])
    assert entry.experiment.describe() == e.describe()


SEVERAL = """
rounds = 10
[problem]
kind = "quadratic"
agents = 4
dim = 2
[algorithm]
name = "fedavg"
step = 0.1
[[experiment]]
name = "quiet"
[[experiment]]
name = "noisy"
problem.noise = 0.5
participation = [2, 4]
gather = "median"
channel = {kind = "cast", dtype = "bfloat16"}
[[experiment]]
name = "another"
rounds = 20
algorithm = {name = "averaged", burn_in = 2, inner = {name = "scaffold", step = 0.1}}
[[experiment]]
name = "two steps"
algorithm = {name = "extrapolated", inner = {name = "averaged", inner = {name = "fedavg", step = 0.1, local_steps = 2}}}
"""


def test_experiments_one_after_the_other(tmp_path):
    path = tmp_path / "several.toml"
    path.write_text(SEVERAL)
    quiet, *noisy, another, two = fp.read(path)
    assert [e.name for e in noisy] == ["noisy: FedAvg, Uniform(2)", "noisy: FedAvg, Uniform(4)"]
    assert quiet.rounds == 10 and another.rounds == 20
    assert noisy[0].experiment.channel == fp.channel.Cast("bfloat16")
    assert noisy[1].experiment.gather == fp.gather.Median()
    assert noisy[0].experiment.problem is noisy[1].experiment.problem
    assert another.experiment.problem is quiet.experiment.problem
    assert another.experiment.algorithm == fp.Averaged(fp.Scaffold(step=0.1), burn_in=2)
    assert two.experiment.algorithm == fp.Extrapolated(fp.Averaged(fp.FedAvg(step=0.1, local_steps=2)))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "problem.noise = 0.5",
            "problem.noise = -1.0",
            "line 14: experiment[2].problem.noise = -1.0: must be at least 0",
        ),
        ("dim = 2", "dmi = 2", "line 6: problem.dmi = 2: unknown key; did you mean 'dim'?"),
        (
            "participation = [2, 4]",
            "participation = 9",
            "line 15: experiment[2].participation = 9: Uniform: 9 participants",
        ),
        (
            'gather = "median"',
            'gather = "medain"',
            "experiment[2].gather = \"medain\": unknown kind 'medain'; did you mean",
        ),
        (
            'dtype = "bfloat16"',
            'dtyp = "bfloat16"',
            'experiment[2].channel.dtyp = "bfloat16": unknown key; did you mean \'dtype',
        ),
        ('name = "scaffold", step', 'name = "scafold", step', "did you mean 'scaffold'?"),
        ("rounds = 20", "rounds = -1", "line 20: experiment[3].rounds = -1: must be at least 0"),
    ],
)
def test_mistakes_stand_where_they_were_made(tmp_path, old, new, message):
    assert old in SEVERAL
    (tmp_path / "several.toml").write_text(SEVERAL.replace(old, new))
    with pytest.raises(Mistakes) as caught:
        fp.read(tmp_path / "several.toml")
    assert "1 mistake\n" in str(caught.value) and message in str(caught.value)


def test_the_schema_knows_every_kind():
    schema = fp.schema()
    text = str(schema)
    for word in ("LinearStream", "TableFile", "ScaffoldTable", "UniformTable", "WorstCaseTable", "Clusters"):
        assert word in text
    assert set(schema["required"]) == {"problem", "algorithm"}
    fedavg = schema["$defs"]["FedAvgTable"]["properties"]
    assert {"name", "step", "local_steps", "normalise"} <= set(fedavg)

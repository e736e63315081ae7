"""Regressions as files: the commands say what the functions say, and all mistakes at once."""

import json

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import fedpoint as fp
from fedpoint.cli import main


@pytest.fixture
def folder(tmp_path):
    rng, n = np.random.default_rng(0), 150
    rows = pd.DataFrame({"x": rng.normal(size=n), "site": rng.integers(0, 3, n), "days": rng.exponential(size=n) + 0.1})
    rows["died"] = (rng.random(n) < 0.5) * 1
    rows.to_csv(tmp_path / "rows.csv", index=False)
    (tmp_path / "glm.toml").write_text(
        'formula = "died ~ x"\ndata = "rows.csv"\ngroups = "site"\nfamily = "binomial"\n'
    )
    (tmp_path / "cox.toml").write_text(
        'formula = "x"\ndata = "rows.csv"\ngroups = "site"\ntime = "days"\nevent = "died"\n'
    )
    return tmp_path


def called(*arguments):
    return CliRunner().invoke(main, [str(a) for a in arguments])


def test_glm_as_text_json_page_and_picture(folder):
    rows = pd.read_csv(folder / "rows.csv")
    fit = fp.glm("died ~ x", rows, groups="site", family="binomial")
    done = called("glm", folder / "glm.toml", "--html", folder / "fit.html", "--figure", folder / "fit.png")
    assert done.exit_code == 0 and done.output.strip() == fit.summary().strip()
    page = (folder / "fit.html").read_text()
    assert "<svg" in page and "odds ratio" in page and "style=" not in page and "http://www.w3.org/2000/svg" in page
    assert (folder / "fit.png").stat().st_size > 3000
    told = json.loads(called("glm", folder / "glm.toml", "--json").output)
    assert told["coefficients"]["x"]["estimate"] == pytest.approx(fit.params["x"], abs=1e-12)
    assert "sandwich errors" in called("glm", folder / "glm.toml", "--errors", "sandwich").output


def test_cox_as_text_and_json(folder):
    rows = pd.read_csv(folder / "rows.csv")
    fit = fp.cox("x", rows, time="days", event="died", groups="site")
    done = called("cox", folder / "cox.toml", "--html", folder / "fit.html")
    assert done.exit_code == 0 and done.output.strip() == fit.summary().strip() and (folder / "fit.html").exists()
    told = json.loads(called("cox", folder / "cox.toml", "--json").output)
    assert told["coefficients"]["x"]["std_err"] == pytest.approx(fit.bse["x"], abs=1e-12)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('formula = "died ~ x"\ndatum = "rows.csv"\n', "unknown key 'datum': did you mean 'data'"),
        ('formula = "died ~ x"\n', "missing 'groups'"),
        ("formula = \n", "not TOML"),
        ('formula = "died ~ x"\ndata = "none.csv"\ngroups = "site"\n', "none.csv cannot be read"),
        ('formula = "died ~ z"\ndata = "rows.csv"\ngroups = "site"\n', "no column 'z'"),
        ('formula = "died ~ x"\ndata = 3\ngroups = "site"\n', "data must name a CSV file"),
        ('formula = "died ~ x"\ndata = "rows.csv"\ngroups = "site"\nfloor = 3\n', "floor must be a table"),
        ('formula = "died ~ x"\ndata = "rows.csv"\ngroups = "site"\nfamily = 3\n', "family must be"),
    ],
)
def test_mistakes_of_a_file(folder, text, said):
    (folder / "bad.toml").write_text(text)
    done = called("glm", folder / "bad.toml")
    assert done.exit_code == 2 and said in done.output and "Traceback" not in done.output


def test_a_file_that_is_not_there(folder):
    done = called("glm", folder / "none.toml")
    assert done.exit_code == 2 and "none.toml cannot be read" in done.output

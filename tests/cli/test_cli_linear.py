"""Problems without a loss on the command line: run, resume, forecast; presets by name."""

import json

WORLDS = """
    rounds = 12
    [problem]
    kind = "garnet"
    agents = 3
    states = 6
    dim = 2
    heterogeneity = 0.5
    [[algorithm]]
    name = "fedlsa"
    step = 0.3
    local_steps = 4
    [[algorithm]]
    name = "scafflsa"
    step = 0.3
    local_steps = 4
"""


def test_worlds(cli, toml):
    result = cli("run", toml(WORLDS), "--folder", "here")
    assert "FedLSA" in result.stdout and "ScaffLSA" in result.stdout and "error.png" in result.stdout
    again = json.loads(cli("resume", "here", "--rounds", 14, "--json").stdout)
    runs = again["runs"] if isinstance(again, dict) else again
    assert all(row["loss"]["mean"] is None and row["error"]["mean"] > 0 and row["rounds"] == 14 for row in runs)
    cited = cli("cite", "here/2-scafflsa").stdout
    assert "mangold2024scafflsa" in cited
    assert "doan2020local" in cli("cite", toml(WORLDS)).stdout
    said = cli("forecast", toml(WORLDS)).stdout
    assert "w* itself" in said and "from w*" in said


def test_presets_take_what_they_name(cli, toml):
    result = cli("run", toml(WORLDS.replace("step = 0.3", "step = 0.3\n    normalise = true", 1)), status=2)
    assert "unknown key" in result.stderr and "local_steps, name, step" in result.stderr
    cited = cli("cite", "scafflsa").stdout
    assert "mangold2024scafflsa" in cited and "mishchenko2022proxskip" in cited
    assert "doan2020local" in cli("cite", "fedlsa").stdout

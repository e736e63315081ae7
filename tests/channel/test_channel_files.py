"""Channels in files: words, tables and lists; mistakes stand where they were made; what is described is built again."""

import pytest

import fedpoint as fp
from fedpoint.channel import Cast, Chain, Clip, Erase, FixedPoint, Gaussian, Quantise, RandK, Sign, TopK

FILE = """
rounds = 2
channel = CHANNEL
[problem]
kind = "quadratic"
agents = 3
dim = 2
[algorithm]
name = "fedavg"
step = 0.1
"""
WRITTEN = {
    '"sign"': Sign(),
    '["sign"]': Sign(),
    '{kind = "top_k", fraction = 0.5}': TopK(0.5),
    '{kind = "rand-k", fraction = 0.5}': RandK(0.5),
    '[{kind = "clip", norm = 1.0, each = true}, {kind = "gaussian", multiplier = 0.8, at = "agents"}]': Chain(
        (Clip(1.0, each=True), Gaussian(0.8, at="agents"))
    ),
    '[{kind = "quantise", width = 4, dither = true}, {kind = "cast", dtype = "float32"}, "erase"]': None,
    '[{kind = "erase", probability = 0.1}, {kind = "fixed_point", width = 16, range = 9.0}]': Chain(
        (Erase(0.1), FixedPoint(16, range=9.0))
    ),
    '[{kind = "quantise", width = 4, dither = true}, {kind = "cast", dtype = "float32"}]': Chain(
        (Quantise(4, dither=True), Cast("float32"))
    ),
}


@pytest.mark.parametrize("text", WRITTEN)
def test_what_a_file_says(text, tmp_path):
    path = tmp_path / "e.toml"
    path.write_text(FILE.replace("CHANNEL", text))
    if WRITTEN[text] is None:
        with pytest.raises(fp.FedpointError, match="probability"):
            fp.read(path)
        return
    (entry,) = fp.read(path)
    assert entry.experiment.channel == WRITTEN[text]
    assert fp.Experiment.from_dict(entry.experiment.describe()).channel == WRITTEN[text]
    again = tmp_path / "again.toml"
    fp.write(again, entry.experiment, rounds=2)
    assert fp.read(again)[0].experiment.channel == WRITTEN[text]


MISTAKES = {
    '"sing"': "did you mean 'sign'",
    '{kind = "clip", nrom = 1.0}': "did you mean 'norm'",
    '{kind = "clip", norm = 0.0}': "norm",
    '[{kind = "gaussian", multiplier = 1.0}]': "needs a clip before it",
    '[{kind = "clip", norm = 1.0}, {kind = "top_k", fraction = 2.0}]': "fraction",
    "3": "must be the name of a channel",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_mistakes_in_a_file(text, tmp_path):
    path = tmp_path / "e.toml"
    path.write_text(FILE.replace("CHANNEL", text))
    with pytest.raises(fp.FedpointError) as error:
        fp.read(path)
    assert MISTAKES[text] in str(error.value) and "channel" in str(error.value)


def test_the_schema_knows_channels():
    listed = fp.schema()
    assert {"ClipTable", "GaussianTable", "TopKTable", "QuantiseTable"} <= set(listed["$defs"])
    assert {"type": "array"} in listed["properties"]["channel"]["anyOf"]

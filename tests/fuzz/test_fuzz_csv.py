"""CSV files of all kinds: a mistake is said, and nothing hangs, blows up or ends in a traceback."""

import hypothesis.strategies as st
import pytest
from fuzz_targets import table
from hypothesis import HealthCheck, Phase, given, settings

FEW = settings(
    max_examples=25, suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.reuse, Phase.generate]
)
MANY = settings(FEW, max_examples=5_000, derandomize=False)
cells = st.one_of(
    st.sampled_from(["1", "2", "3.5", "x", "y", "", "NA", "nan", "inf", "-1e308", "1e400", '"', '"a', '"a,b"', " 1 "]),
    st.sampled_from(["9" * 400, "0x1", "1_000", "１", "\ufeff", "\0", "a\tb", "'", "=1+1", "true", "2020-01-01"]),
    st.text(max_size=3),
)
rows = st.lists(cells, min_size=2, max_size=5).map(",".join)
ends = st.sampled_from(["\n", "\r\n", "\r", "\n\n", ""])


@st.composite
def files(draw):
    """A header with the two columns that are asked for, mostly, and rows that mostly fit it."""
    header = draw(st.sampled_from(["a,y,x", "a,y,x", "y,a", "a,y,y", "x,y", "", '"a",y,"x z"', "a,y,x,", "a;y;x"]))
    good = draw(st.lists(st.sampled_from(["p,1,2", "q,3,4", "p,2,0.5", "q,0,1"]), max_size=6))
    lines = draw(st.permutations([*good, *draw(st.lists(rows, max_size=3))]))
    text = "".join(line + draw(ends) for line in [header, *lines])
    return draw(st.sampled_from(["", "\ufeff"])).encode() + text.encode(
        draw(st.sampled_from(["utf-8", "utf-16"])), "replace"
    )


@FEW
@given(st.one_of(files(), files(), st.binary(max_size=60)))
def test_files(data):
    table(data)


@pytest.mark.slow
@MANY
@given(st.one_of(files(), files(), st.binary(max_size=60)))
def test_many_files(data):
    table(data)


@pytest.mark.parametrize(
    "data",
    [
        b"a,y,x\n" + b'"' + b"z" * 5_000_000,  # a quote that never closes
        b"a,y," + b",".join(b"c%d" % i for i in range(5_000)) + b"\np,1\n",
        b"a,y,x\n" + b"\n" * 1_000_000,
        b"a,y,x\n" + b"p,1," + b"9" * 100_000 + b"\n",
        b"a,y,x\n" + b"".join(b"p%d,1,w%d\n" % (i, i) for i in range(5_000)),  # as many agents and words as rows
        b"\x00" * 100_000,
        b"PAR1" + b"\xff" * 100,
    ],
    ids=range(7),
)
def test_files_that_are_meant_to_hurt(data):
    table(data)

"""One server of the live page for all tests of a process."""

import pytest
from on_loopback import serving


@pytest.fixture(scope="session")
def page(tmp_path_factory):
    """One server for all tests of a process, with one finished run."""
    import fedpoint as fp

    runs = tmp_path_factory.mktemp("runs")
    quad = fp.problems.Quadratic([1.0, 2.0], [[0.0], [1.0]], noise=0.01)
    fp.run(fp.FedAvg(step=0.1, local_steps=3), quad, rounds=40, repeats=3, folder=runs / "first")
    with serving(runs) as client:
        client.runs = runs
        yield client

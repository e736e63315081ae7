"""Problems for the tests of this folder."""

import pytest
from zoo import PROBLEMS, SAMPLED, build

from fedpoint.engine.cpu import cache


@pytest.fixture(autouse=True, scope="session")
def cached():
    cache.enable()


@pytest.fixture(params=PROBLEMS)
def problem(request):
    return build(request.param)


@pytest.fixture(params=SAMPLED)
def sampled(request):
    return build(request.param, True)

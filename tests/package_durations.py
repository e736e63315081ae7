"""Writes the seconds of every test that passed to the file in FEDPOINT_DURATIONS (of `make mutants`)."""

import json
import os
from pathlib import Path

import pytest

_seconds: dict[str, float] = {}
_failed: set[str] = set()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _failed.add(report.nodeid)
    if report.when == "call" and report.passed:
        _seconds[report.nodeid] = report.duration


def pytest_sessionfinish(session: pytest.Session) -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ:  # the one that hears of all tests
        passed = {name: took for name, took in _seconds.items() if name not in _failed}
        Path(os.environ["FEDPOINT_DURATIONS"]).write_text(json.dumps(passed))

"""A while of every target under atheris, where it is installed."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris is not installed")
@pytest.mark.parametrize("target", ["toml", "table", "arrays", "message"])
def test_atheris(target, tmp_path):
    script = Path(__file__).with_name("atheris_targets.py")
    done = subprocess.run(
        [sys.executable, str(script), target, "-max_total_time=30", "-rss_limit_mb=0", f"-artifact_prefix={tmp_path}/"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]

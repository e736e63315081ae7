"""With everything switched off that knows XLA's CPU compiler, plain JAX computes the same."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import tricks

from fedpoint.core.compiling import SWITCH
from fedpoint.engine.cpu import tuning
from fedpoint.engine.session import Session


def test_plain_jax_computes_the_same(tmp_path, monkeypatch):
    environment = {**os.environ, SWITCH: "0"}
    script = Path(tricks.__file__)
    subprocess.run([sys.executable, script, tmp_path / "plain.npz"], env=environment, check=True)
    monkeypatch.setenv(SWITCH, "1")
    kinds = set()
    with np.load(tmp_path / "plain.npz") as plain:
        for name, run in tricks.runs().items():
            assert isinstance(run.session, Session)
            kinds.add(run.session.layout.tuning)
            for i, leaf in enumerate(jax.tree.leaves(run.history)):
                scale = np.abs(leaf).max()
                np.testing.assert_allclose(plain[f"{name}/{i}"], leaf, rtol=0, atol=1e-12 * scale, err_msg=name)
    assert {t.kernel for t in kinds} == {t.threads for t in kinds} == {True, False}  # every way was gone


def test_switched_off_nothing_is_left(monkeypatch):
    monkeypatch.setenv(SWITCH, "0")
    assert tuning.Tuning.choose(True, 1, lambda: 1) == tuning.PLAIN
    assert tuning.OPTIONS[tuning.PLAIN.compiled] is None

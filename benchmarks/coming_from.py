"""Do the scripts of docs/coming_from.md end at the same model?

    python benchmarks/coming_from.py flower=PYTHON pfl=PYTHON fedjax=PYTHON

PYTHON: of an environment with the framework (`make bench-peers` makes such below build/peers). Prints the largest
difference between a number of its model and of fedpoint's.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

PAGE = Path(__file__).resolve().parents[1] / "docs" / "coming_from.md"
SECTIONS = {"flower": "Flower", "pfl": "pfl", "fedjax": "FedJAX"}


def main() -> None:
    pythons = dict(argument.split("=", 1) for argument in sys.argv[1:])
    if not pythons or set(pythons) - set(SECTIONS):
        sys.exit(__doc__)
    text = PAGE.read_text()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        exec(re.search(r"```python\n(.*?)```", text, re.S)[1], {})
        ours = np.load("fedpoint.npy")
        for name, python in pythons.items():
            code = re.search(rf"\n## {SECTIONS[name]}\n.*?```py\n(.*?)```", text, re.S)[1]
            Path("job.py").write_text(f"FOLDER = {folder!r}\n{code}")
            quiet = {**os.environ, "FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
            quiet.pop("PYTHONPATH", None)
            subprocess.run([python, "job.py"], check=True, env=quiet, stdout=subprocess.DEVNULL, timeout=600)
            print(f"{SECTIONS[name]}: {np.abs(np.load('model.npy') - ours).max():.1e}", flush=True)
            Path("model.npy").unlink()


if __name__ == "__main__":
    main()

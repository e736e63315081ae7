"""Federated averaging of McMahan's CNN over 3,400 writers whose images are on disk: in how much memory?

    python benchmarks/rows_on_disk.py [--writers 3400] [--rounds 20]

Synthetic images of FEMNIST's shape, 20 to 400 a writer, in single precision and in two npy files that are mapped; 10
writers a round, 10 local steps on batches of 20. The files are written by this process, each run is in one of its own:
the largest resident memory of that one is told (Linux), and its processor time beside the same run of rows in memory.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import convolutions
import jax
import numpy as np

import fedpoint as fp

A_ROUND, STEPS, BATCH, STEP = 10, 10, 20, 0.05


def write(folder: Path, writers: int) -> int:
    """The files, a writer at a time; how many images."""
    rng = np.random.default_rng(0)
    sizes = np.clip(rng.lognormal(4.6, 0.7, writers), 20, 400).astype(int)
    labels = rng.integers(0, convolutions.CLASSES, sizes.sum())
    means = rng.normal(size=(convolutions.CLASSES, 28, 28, 1)).astype("f")
    shape = (len(labels), 28, 28, 1)
    images = np.lib.format.open_memmap(folder / "x.npy", "w+", "f", shape)
    for part in np.array_split(np.arange(len(labels)), writers // 10 + 1):
        images[part] = means[labels[part]] + rng.standard_normal((len(part), *shape[1:]), "f")
    images.flush()
    np.save(folder / "y.npy", labels)
    np.save(folder / "who.npy", np.repeat(np.arange(writers), sizes))
    return len(labels)


def run(folder: Path, rounds: int, mode: str | None) -> None:
    x, y = (np.load(folder / f"{name}.npy", mmap_mode=mode) for name in "xy")  # type: ignore[call-overload]
    start = convolutions.start(np.random.default_rng(0))
    problem = fp.problems.Loss(convolutions.loss, start, (x, y), np.load(folder / "who.npy"), batch=BATCH)
    method = fp.FedAvg(step=STEP, local_steps=STEPS)
    done = fp.run(method, problem, 1, participation=A_ROUND, record_every=10**6)
    begun = time.process_time()
    done.session.advance(rounds)
    taken = 1e3 * (time.process_time() - begun) / ((rounds - 1) * A_ROUND * STEPS)
    said = float(sum(np.abs(a).sum() for a in jax.tree.leaves(done.session.model())))
    status = Path("/proc/self/status").read_text()  # getrusage says what the parent took where that was more
    peak = int(status.split("VmHWM:")[1].split()[0]) / 1e6
    where = "on disk" if mode else "in memory"
    print(f"rows {where}: peak {peak:.2f} GB, {taken:.1f} ms a step, model of {said:.6f}; {done.engine}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--writers", type=int, default=3400)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--run", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--in-memory", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.run is not None:
        run(asked.run, asked.rounds, None if asked.in_memory else "r")
        return
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        images = write(folder, asked.writers)
        size = sum(path.stat().st_size for path in folder.iterdir()) / 1e9
        print(f"{asked.writers:,} writers, {images:,} images, {size:.2f} GB on disk", flush=True)
        again = [sys.executable, __file__, "--rounds", str(asked.rounds), "--run", str(folder)]
        for more in ([], ["--in-memory"]):
            subprocess.run([*again, *more], check=True)


if __name__ == "__main__":
    main()

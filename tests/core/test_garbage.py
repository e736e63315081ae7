"""Pauses of the garbage collection, in a process where a look through everything takes no time."""

import subprocess
import sys
from pathlib import Path

ALONE = Path(__file__).with_name("garbage_alone.py")


def test_garbage_is_found_and_what_was_made_at_once_is_old():
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "--noconftest", "-p", "no:cacheprovider", str(ALONE)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and "5 passed" in done.stdout, done.stdout + done.stderr

"""The command line in a hurry: many saves in a short time; it may kill itself in the middle of one.

    python worker.py STEP run FILE ...

STEP: the step on disk at which it sends itself SIGKILL; 0: it does not.
"""

import itertools
import os
import signal
import sys

from disk_steps import every_step


def hurry(patience):
    from fedpoint.engine import base
    from fedpoint.store import folder
    from fedpoint.store import writer as store

    store.PERIOD, store.SHARE, base.PATIENCE, folder.MAX_RECORD_FILES = 4 * patience, float("inf"), patience, 8


def main(step, *arguments):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the parent ignores it
    from fedpoint.cli import main as fedpoint

    hurry(0.005)
    steps = itertools.count(1)

    def look():
        if next(steps) == int(step):
            os.kill(os.getpid(), signal.SIGKILL)

    with every_step(look):
        fedpoint(arguments)


if __name__ == "__mp_main__":  # a process that shares the run
    hurry(0.05)
if __name__ == "__main__":
    main(*sys.argv[1:])

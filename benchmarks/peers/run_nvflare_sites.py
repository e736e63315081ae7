"""A federation on NVFlare: its simulator with a thread for every client gives each a process that stays."""

import sys

from common import Job
from run_nvflare import main

if __name__ == "__main__":
    folder, rounds = sys.argv[1:]
    main(folder, rounds, threads=Job(folder).agents)

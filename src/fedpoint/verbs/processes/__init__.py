"""`fp.run(..., processes=)`: who starts, watches and ends the processes of a run."""

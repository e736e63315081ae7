"""`python -m fedpoint`: the command line."""

from fedpoint.cli import main

main(prog_name="fedpoint")

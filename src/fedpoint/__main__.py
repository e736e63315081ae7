"""The command line: `fedpoint`, or `python -m fedpoint`."""

from fedpoint.interrupts import loading

with loading():
    from fedpoint.cli import main

if __name__ == "__main__":
    main(prog_name="fedpoint")

"""Everything that knows XLA's compiler for CPUs, behind one switch (`tuning.py`)."""

"""Everything that knows XLA's compiler for CPUs."""

"""Where a run happens: the round, the program that repeats it, the session that drives it."""

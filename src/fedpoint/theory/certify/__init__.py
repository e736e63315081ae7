"""Which method is this? Small worlds, plain references with their known mistakes, and what tells them apart."""

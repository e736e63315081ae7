"""A run whose agents are shared out between processes."""

"""Networks of agents: where they come from, what they look like, and GTVMin on them."""

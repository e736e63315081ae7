"""The abstraction: agents, hubs, messages, randomness, participation and the one inner loop."""

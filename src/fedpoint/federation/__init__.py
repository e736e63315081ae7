"""Real sites that keep their data: hub, sites, the messages between them, and what carries these."""

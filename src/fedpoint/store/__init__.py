"""The durable run: what lies on disk, written whole or not at all."""

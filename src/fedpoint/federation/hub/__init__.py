"""The hub of a study: it asks, looks at what comes, merges what is good, and writes down how far it is."""

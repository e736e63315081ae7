"""Who works when, with what weight, and how old is what is heard."""

"""A site of a study: it holds the data, and answers what its study allows."""

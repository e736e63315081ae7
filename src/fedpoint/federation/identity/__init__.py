"""Who is a party, and what did the leader sign? Certificates of a project's authority, and signed studies."""

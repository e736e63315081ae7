"""What does a run look like while it goes on, and what does a slider do to it? `fedpoint ui`, a page on loopback."""

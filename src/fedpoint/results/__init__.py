"""What comes out: runs, forecasts, verdicts, plans; data, and the rows that text, HTML and JSON are made of."""

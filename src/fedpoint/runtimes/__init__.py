"""Where a run happens: in this process (simulation), and later on many, or over real sites."""

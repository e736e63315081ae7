"""What a user says: run, compare, sweep; later forecast, check, plan, federate."""

"""What a user says: run, compare, sweep; forecast, check, plan, certify."""

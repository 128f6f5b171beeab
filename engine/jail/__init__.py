"""Jail plans: pure functions from policy and facts of this host to what the launcher must do."""

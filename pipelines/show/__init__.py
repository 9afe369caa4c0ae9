"""Output for a user, in a terminal or a log."""

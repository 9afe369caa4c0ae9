"""What a user sees in a terminal or a log."""

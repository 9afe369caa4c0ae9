"""What a run would do and cost, without running it."""

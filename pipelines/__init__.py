"""What a user runs: the commands, their driver loops, the ChangeList and its publication."""

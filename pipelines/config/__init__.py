"""What a user may ask for, validated."""

"""What keeps keys and other secrets out of files, logs and plain HTTP."""

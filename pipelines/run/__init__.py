"""What every run has: an engine, a work folder, a lock, an observer, and what it published."""

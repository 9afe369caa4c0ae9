"""Files become encoded shards, with the totals of all examples."""

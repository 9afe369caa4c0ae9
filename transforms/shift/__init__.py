"""A labelled pool becomes strata, and candidates to ask an API about."""

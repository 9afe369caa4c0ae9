"""A labelled pool becomes strata, and candidates to send to an API."""

"""Examples become codes: sources, domains, predicates, predictions, and the shards with them."""

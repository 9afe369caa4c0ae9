"""What proposes tests and topics: a module each, and the registry that knows them all."""

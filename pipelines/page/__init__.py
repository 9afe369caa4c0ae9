"""The page of a result: what it holds of a document, as a single file, and with a server behind it."""

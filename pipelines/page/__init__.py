"""The page that shows a result: what it holds of a document, and the single file that opens anywhere."""

"""What the functions of ``api`` run: tables or files in, what was found at hand."""

"""Runs the functions of ``api``: tables or files in, the result in memory."""

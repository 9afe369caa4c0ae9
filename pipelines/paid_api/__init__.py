"""Calls that cost money: requests, answers, the pace, and the ledger that keeps each answer."""

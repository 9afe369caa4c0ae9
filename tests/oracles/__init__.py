"""Slow, independent computations that results of the search are compared with.

Written from the contract and the paper alone: plain Python, pandas and ``scipy.stats``, one slice
at a time.  Nothing here imports slicebeam.
"""

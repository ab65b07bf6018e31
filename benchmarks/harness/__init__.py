"""Harness of `compare.py`: runs each contender in its own environment and reports the results."""

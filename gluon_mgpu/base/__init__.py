"""Argument checks, machine facts, how a program ends, and files: needs nothing else of the package."""

"""Argument checks, machine facts, how programs end, atomic writing. Imports nothing else of the package."""

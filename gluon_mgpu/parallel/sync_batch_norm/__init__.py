"""Synchronized batch norm: a network cut at its batch norms, and the formulas."""

"""Preparation of the process for MXNet, and the differences between MXNet 1.9 and 2."""

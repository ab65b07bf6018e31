"""MXNet made usable: set up, imported or refused in one line, and MXNet 1.9 and 2 spoken to in the same way."""

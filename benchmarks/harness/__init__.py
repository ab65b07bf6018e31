"""What runs the contenders of `compare.py`, each in an environment of its own, and reports what they came to."""

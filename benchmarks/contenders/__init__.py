"""The programs that `compare.py` compares, how one of them is run, and what their numbers come to."""

"""Files that a run leaves behind: curves, step timelines."""

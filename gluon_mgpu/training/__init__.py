"""The training loop around the chapters: the run and its callbacks, losses, evaluation and a timer."""

"""Save, load and resume: the file format, the optimizer's state, the callback and the run folder."""

"""Several processes that train together: workers, Horovod, launchers, and detecting lost workers."""

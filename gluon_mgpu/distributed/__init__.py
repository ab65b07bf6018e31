"""Several processes that train together: workers, and their Trainer."""

"""Reader for the results of a run."""
import csv
from pathlib import Path


def history(folder) -> list[dict[str, str]]:
    """Return the rows of a run's history.csv, one per epoch."""
    with open(Path(folder) / 'history.csv', newline='') as file:
        return list(csv.DictReader(file))

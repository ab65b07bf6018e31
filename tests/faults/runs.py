"""Helpers that run a program and read the results of a training run."""
from __future__ import annotations

import os
import subprocess
from pathlib import Path

from history_csv import history

from gluon_mgpu.checkpoints import checkpoint
from gluon_mgpu.checkpoints.run_folder import checkpoints


def run(command: list, timeout: float = 120, **options) -> subprocess.CompletedProcess:
    """Run a program and wait for it."""
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False,
                          timeout=timeout, **options)


def outcome(folder: Path) -> tuple:
    """Return a run's history without seconds, and the bytes of all arrays in its last checkpoint."""
    record, arrays = checkpoint.read(checkpoints(folder)[0])
    results = [(epoch, loss, acc) for epoch, _, loss, acc, *_ in record['metadata']['run']['history']]
    assert [int(row['epoch']) for row in history(folder)] == [epoch for epoch, *_ in results]
    return results, {name: [array.tobytes() for array in kept] for name, kept in arrays.items()}


def listing(folder) -> list[str]:
    """Return the paths of all files and folders in a folder."""
    return sorted(os.path.join(at, name) for at, folders, files in os.walk(folder) for name in (*folders, *files))

"""Runs of programs, and what they have come to."""
from __future__ import annotations

import os
import subprocess
from pathlib import Path

from gluon_mgpu.checkpoints import checkpoint
from gluon_mgpu.checkpoints.callback import checkpoints


def run(command: list, timeout: float = 120, **options) -> subprocess.CompletedProcess:
    """Run a program to its end."""
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False,
                          timeout=timeout, **options)


def outcome(folder: Path) -> tuple:
    """What a run has come to, to the bit: all arrays of its last checkpoint, and its history but for the seconds."""
    record, arrays = checkpoint.read(checkpoints(folder)[0])
    history = [(epoch, loss, acc) for epoch, _, loss, acc, _ in record['position']['run']['history']]
    lines = [line.split(',') for line in (folder / 'history.csv').read_text().splitlines()]
    assert [int(line[0]) for line in lines[1:]] == [epoch for epoch, *_ in history]
    return history, {name: [array.tobytes() for array in kept] for name, kept in arrays.items()}


def listing(folder) -> list[str]:
    """All that is in a folder."""
    return sorted(os.path.join(at, name) for at, folders, files in os.walk(folder) for name in (*folders, *files))

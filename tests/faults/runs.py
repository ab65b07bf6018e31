"""Helpers that run a program and read the results of a training run."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from history_csv import history

from gluon_mgpu.checkpoints import checkpoint
from gluon_mgpu.checkpoints.run_folder import checkpoints

# Each step takes 0.1 s longer, so that something can happen before the end. Jobs in the background of a shell script
# ignore Ctrl-C, so it sets its handler again
SLOW_STEPS = ('signal.signal(signal.SIGINT, signal.default_int_handler)\n'
              'batch = scratch.train_batch\n'
              'scratch.train_batch = lambda *args: (time.sleep(0.1), batch(*args))[1]')


def altered(command: list, code: str) -> list:
    """Return the command of a chapter, which runs some code before it begins."""
    begin, end = 'import os, signal, sys, time; from gluon_mgpu import scratch', 'sys.exit(scratch.main(sys.argv[1:]))'
    return [sys.executable, '-c', f'{begin}\n{code}\n{end}', *command[3:]]


def run(command: list, timeout: float = 120, **options) -> subprocess.CompletedProcess:
    """Run a program and wait for it."""
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False,
                          timeout=timeout, **options)


def start(command: list, line: str) -> subprocess.Popen:
    """Start a program; return when it has printed a line with this beginning."""
    process = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True)
    assert any(printed.startswith(line) for printed in process.stdout)
    return process


def outcome(folder: Path) -> tuple:
    """Return a run's history without seconds, and the bytes of all arrays in its last checkpoint."""
    record, arrays = checkpoint.read(checkpoints(folder)[0])
    results = [(epoch, loss, acc) for epoch, _, loss, acc, *_ in record['metadata']['run']['history']]
    assert [int(row['epoch']) for row in history(folder)] == [epoch for epoch, *_ in results]
    return results, {name: [array.tobytes() for array in kept] for name, kept in arrays.items()}


def listing(folder) -> list[str]:
    """Return the paths of all files and folders in a folder."""
    return sorted(os.path.join(at, name) for at, folders, files in os.walk(folder) for name in (*folders, *files))

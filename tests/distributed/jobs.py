"""Jobs of several workers, started by horovodrun."""
from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
from pathlib import Path

import psutil

HERE = Path(__file__).parent
PATH = os.pathsep.join(map(str, (HERE, HERE.parent, HERE.parents[1])))  # of the programs in this folder
LOST = 'another worker has failed, was stopped or has ended its program'
LAUNCHER = Path(sys.executable).with_name('horovodrun')
# Of MXNet, possibly instead of the line about a lost worker: docs/many-machines.md
CRASHES = 'Aborted', 'Segmentation fault'


class Job:
    """A command that runs with `num_workers` workers on this machine, or is started by `launch`.

    The end of the ``with`` block kills all workers that still run.
    """

    def __init__(self, num_workers: int, *command, launch: tuple = (), **environment):
        self.mark = secrets.token_hex(8)  # in the environment of all its processes
        launch = launch or (sys.executable, LAUNCHER, '--gloo', '-np', num_workers, '-H', f'localhost:{num_workers}')
        words = 'env', '--default-signal=INT', *launch, *command  # jobs in the background ignore SIGINT
        self.process = subprocess.Popen(
            [str(word) for word in words], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**os.environ, 'LC_ALL': 'C.UTF-8', 'JOB': self.mark, **environment}, start_new_session=True)
        self.lines: list[str] = []

    @classmethod
    def completed(cls, num_workers: int, *command, timeout: float = 100, **options) -> str:
        """Run a job, which must succeed, to its end; return its `text`."""
        with cls(num_workers, *command, **options) as job:
            assert job.end(timeout) == 0, ''.join(job.lines)
        return job.text

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *error) -> None:
        for worker in self.workers():
            worker.kill()
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def wait_for(self, *texts: str) -> None:
        """Read the job's output until a line contains one of the texts."""
        for line in self.process.stdout:
            self.lines.append(line)
            if any(text in line for text in texts):
                return
        raise AssertionError(f'none of {texts} was printed, but:\n{"".join(self.lines)}')

    def end(self, timeout: float = 100) -> int:
        """Wait for the end and return the exit status."""
        rest, _ = self.process.communicate(timeout=timeout)
        self.lines += rest.splitlines(keepends=True)
        return self.process.returncode

    def workers(self) -> list[psutil.Process]:
        """Return the running workers in the order of rank, including any that the launcher has left behind."""
        found = {}
        for process in psutil.process_iter():
            try:
                environment = process.environ()
                if environment.get('JOB') == self.mark and process.name().startswith('python') and \
                        'HOROVOD_RANK' in environment and process.status() != psutil.STATUS_ZOMBIE:
                    found[int(environment['HOROVOD_RANK'])] = process
            except psutil.Error:
                pass
        return [found[rank] for rank in sorted(found)]

    @property
    def text(self) -> str:
        """The workers' output as ``[rank] line``, without the lines of the launcher and its shell."""
        matches = [re.match(r'\[(\d+)\]<std(?:out|err)>:(.*)', line) for line in self.lines]
        return '\n'.join(f'[{found[1]}] {found[2]}' for found in matches if found and found[2] != 'Terminated')

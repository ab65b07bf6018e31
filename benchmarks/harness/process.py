"""Runner that starts a program in its own process, watches it, ends it and reads the last line of its output."""
from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import signal
import subprocess
import tempfile
import time
from pathlib import Path

POLL = 0.2  # seconds between two checks of a running program
EXPECTED = ('name', 'epoch_seconds', 'cores_busy', 'rows', 'loss', 'test_acc')
CEILING = Path(__file__).with_name('ceiling.py')
# Settings of the shell and of gluon_mgpu, removed so that every program starts from its own defaults
DROPPED = re.compile(r'(OMP|KMP|MKL|OPENBLAS|MXNET|MALLOC|TORCH\w*|GLUON_MGPU)_|PYTHON(HOME|PATH)$')


class ProgramError(ValueError):
    """Error: a program crashed, took too long or printed no readable line; the message says which."""


def run(python, program, job: dict, timeout: float) -> dict:
    """Run one contender.

    Parameters
    ----------
    python, program : path-like
        The interpreter of its environment, and the file it runs.
    job : dict
        As described in `common`.
    timeout : float
        Seconds after which the program and its children are killed.

    Returns
    -------
    dict
        The contender's line, ``job_seconds`` from start to end, and ``peak_mb``, the maximum memory of the program
        and its children together.

    Raises
    ------
    ProgramError
        If the program fails.
    """
    output, seconds, peak_mb = _call([python, program, json.dumps(job)], timeout)
    line = parse(output)
    missing = [name for name in EXPECTED if name not in line]
    if missing:
        raise ProgramError(f'{", ".join(missing)} missing in its last line')
    return {**line, 'job_seconds': seconds, 'peak_mb': peak_mb}


def ceiling(python, num_cores: int, timeout: float) -> dict:
    """Run `ceiling.py` for at most `timeout` seconds; return name -> GFLOP/s. Raises ProgramError."""
    output, _, _ = _call([python, CEILING, num_cores], timeout)
    return parse(output)


def parse(output: str) -> dict:
    """Return the JSON object in the last line of a program's output; raise ProgramError if there is none."""
    lines = output.strip().splitlines()
    try:
        line = json.loads(lines[-1])
    except (IndexError, ValueError):
        line = None
    if not isinstance(line, dict):
        raise ProgramError(f'no JSON object in its last line: {lines[-1][:80] if lines else "it printed nothing"}')
    return line


def _call(command: list, timeout: float) -> tuple[str, float, float]:
    """Run a program to its end; return its output, seconds and peak MB. Raises ProgramError."""
    with tempfile.TemporaryDirectory(prefix='compare-') as folder:
        out, err = Path(folder, 'out'), Path(folder, 'err')
        # an empty cache for torch.compile, because compilation counts as part of the job
        env = {name: value for name, value in os.environ.items() if not DROPPED.match(name)}
        env['TORCHINDUCTOR_CACHE_DIR'] = str(Path(folder, 'inductor'))
        started = time.perf_counter()
        with out.open('w') as stdout, err.open('w') as stderr:
            try:
                process = subprocess.Popen([str(word) for word in command], stdout=stdout, stderr=stderr,
                                           stdin=subprocess.DEVNULL, env=env,
                                           start_new_session=True)  # a process group that can be killed as a whole
            except OSError as error:
                raise ProgramError(str(error)) from None
        try:
            peak_mb = _watch(process, started + timeout)
        except subprocess.TimeoutExpired:
            raise ProgramError(f'took longer than {timeout:g} s') from None
        finally:
            _end(process)
        seconds = time.perf_counter() - started
        if process.returncode:
            raise ProgramError(f'exit status {process.returncode}: {_last_line(err)}')
        return out.read_text(errors='replace'), seconds, peak_mb


def _watch(process, deadline: float) -> float:
    """Wait for the process to end; return the peak MB of the process and its children."""
    peak, checks = 0.0, 0
    while True:
        try:
            process.wait(min(POLL, max(deadline - time.perf_counter(), 0.001)))
            return peak
        except subprocess.TimeoutExpired:
            if time.perf_counter() > deadline:
                raise
        if checks % 5 == 1:  # once per second, because reading /proc takes milliseconds
            peak = max(peak, _memory_mb(process.pid))
        checks += 1


def _memory_mb(pid: int) -> float:
    """Return the MB of a process and its children, shared pages counted once; 0 without /proc."""
    kilobytes = 0
    for member in _family(pid):
        try:
            rollup = Path(f'/proc/{member}/smaps_rollup').read_text()
            kilobytes += int(re.search(r'^Pss:\s+(\d+) kB', rollup, re.M).group(1))
        except (OSError, AttributeError):  # the process has ended
            continue
    return kilobytes * 1024 / 1e6


def _family(pid: int) -> set[int]:
    """Return a process, its group and their children, also those in other groups, such as Horovod's workers."""
    parents, family = {}, {pid}
    for stat in glob.glob('/proc/[0-9]*/stat'):
        with contextlib.suppress(OSError):  # the process has ended
            fields = Path(stat).read_text().rpartition(')')[2].split()  # the name before it may contain spaces
            number = int(stat.split('/')[2])
            parents[number] = int(fields[1])
            if int(fields[2]) == pid:
                family.add(number)
    while found := {child for child, parent in parents.items() if parent in family} - family:
        family |= found
    return family


def _end(process) -> None:
    """Kill the process, its group and, if it still runs, its children in other groups (Linux)."""
    children = _family(process.pid) - {process.pid}
    with contextlib.suppress(ProcessLookupError, PermissionError):  # no process is left
        os.killpg(process.pid, signal.SIGKILL)
    for child in children:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it was in the group
            os.kill(child, signal.SIGKILL)
    process.wait()


def _last_line(path: Path) -> str:
    lines = path.read_text(errors='replace').strip().splitlines()
    return lines[-1][:200] if lines else 'no error message'

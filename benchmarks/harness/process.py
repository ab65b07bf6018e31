"""A program run as a process of its own: started, watched, ended, the last line of its output read."""
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

POLL = 0.2  # seconds between two looks at a running program
EXPECTED = ('name', 'epoch_seconds', 'cores_busy', 'rows', 'loss', 'test_acc')
CEILING = Path(__file__).with_name('ceiling.py')
# Every program begins from its own defaults: what is set in this shell, or was set here by importing
# gluon_mgpu, would otherwise be set for the peers as well.
DROPPED = re.compile(r'(OMP|KMP|MKL|OPENBLAS|MXNET|MALLOC|TORCH\w*|GLUON_MGPU)_|PYTHON(HOME|PATH)$')


class ProgramError(ValueError):
    """A program crashed, took too long or printed no line that can be read; the message says which."""


def run(python, program, job: dict, timeout: float) -> dict:
    """Run one contender.

    Parameters
    ----------
    python, program : path-like
        The interpreter of its environment, and the file it runs.
    job : dict
        What it is to do, as `common.read_job` describes it.
    timeout : float
        Seconds after which it is ended, together with all that it started.

    Returns
    -------
    dict
        The contender's line and two numbers more: ``job_seconds``, from its start to its end, and
        ``peak_mb``, the most memory that it and the processes it started were seen to hold together.

    Raises
    ------
    ProgramError
        In one line.
    """
    output, seconds, peak_mb = _call([python, program, json.dumps(job)], timeout)
    line = parse(output)
    missing = [name for name in EXPECTED if name not in line]
    if missing:
        raise ProgramError(f'{", ".join(missing)} missing in its last line')
    return {**line, 'job_seconds': seconds, 'peak_mb': peak_mb}


def ceiling(python, num_cores: int, timeout: float) -> dict:
    """Run `ceiling.py` for at most `timeout` seconds; name -> GFLOP/s, or a ProgramError if it fails."""
    output, _, _ = _call([python, CEILING, num_cores], timeout)
    return parse(output)


def parse(output: str) -> dict:
    """The last line of a program's output, a JSON object; a ProgramError if it is none."""
    lines = output.strip().splitlines()
    try:
        line = json.loads(lines[-1])
    except (IndexError, ValueError):
        line = None
    if not isinstance(line, dict):
        raise ProgramError(f'no JSON object in its last line: {lines[-1][:80] if lines else "it printed nothing"}')
    return line


def _call(command: list, timeout: float) -> tuple[str, float, float]:
    """Run a program to its end: its output, its seconds, its peak memory in MB; a ProgramError if it fails."""
    with tempfile.TemporaryDirectory(prefix='compare-') as folder:
        out, err = Path(folder, 'out'), Path(folder, 'err')
        # torch.compile keeps what it compiled: a new cache each time, since the whole job is to count it
        env = {name: value for name, value in os.environ.items() if not DROPPED.match(name)}
        env['TORCHINDUCTOR_CACHE_DIR'] = str(Path(folder, 'inductor'))
        started = time.perf_counter()
        with out.open('w') as stdout, err.open('w') as stderr:
            try:
                process = subprocess.Popen([str(word) for word in command], stdout=stdout, stderr=stderr,
                                           stdin=subprocess.DEVNULL, env=env,
                                           start_new_session=True)  # a group of its own, to be ended as a whole
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
    """Wait for the process to end; the peak memory in MB of all that it has started."""
    peak, looks = 0.0, 0
    while True:
        try:
            process.wait(min(POLL, max(deadline - time.perf_counter(), 0.001)))
            return peak
        except subprocess.TimeoutExpired:
            if time.perf_counter() > deadline:
                raise
        if looks % 5 == 1:  # once per second: it is looked up in tables of the kernel, which takes milliseconds
            peak = max(peak, _memory_mb(process.pid))
        looks += 1


def _memory_mb(pid: int) -> float:
    """Memory in MB of a process and all that it has started, shared pages counted once; 0 where there is no /proc."""
    kilobytes = 0
    for member in _family(pid):
        try:
            rollup = Path(f'/proc/{member}/smaps_rollup').read_text()
            kilobytes += int(re.search(r'^Pss:\s+(\d+) kB', rollup, re.M).group(1))
        except (OSError, AttributeError):  # it has ended
            continue
    return kilobytes * 1024 / 1e6


def _family(pid: int) -> set[int]:
    """A process, those of its group, and what they have started, also in groups of their own as Horovod's workers."""
    parents, family = {}, {pid}
    for stat in glob.glob('/proc/[0-9]*/stat'):
        with contextlib.suppress(OSError):  # it has ended
            fields = Path(stat).read_text().rpartition(')')[2].split()  # the name before it may hold spaces
            number = int(stat.split('/')[2])
            parents[number] = int(fields[1])
            if int(fields[2]) == pid:
                family.add(number)
    while found := {child for child, parent in parents.items() if parent in family} - family:
        family |= found
    return family


def _end(process) -> None:
    """End what is left of the process's group, such as the workers of one that crashed."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # nothing is left
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _last_line(path: Path) -> str:
    lines = path.read_text(errors='replace').strip().splitlines()
    return lines[-1][:200] if lines else 'it said nothing'

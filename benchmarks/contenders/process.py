"""One contender, run as a process of its own: started, watched, ended, its line read."""
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

POLL = 0.2  # seconds between two looks at a running contender
EXPECTED = ('name', 'epoch_seconds', 'cores_busy', 'rows', 'loss', 'test_acc')
# Every contender begins from its own defaults: what is set in this shell, or was set here by importing
# gluon_mgpu, would otherwise be set for the peers as well.
DROPPED = re.compile(r'(OMP|KMP|MKL|OPENBLAS|MXNET|MALLOC|TORCH\w*|GLUON_MGPU)_|PYTHON(HOME|PATH)$')


class ContenderError(ValueError):
    """A contender crashed, took too long or printed no line; the message says which."""


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
    ContenderError
        In one line.
    """
    with tempfile.TemporaryDirectory(prefix='compare-') as folder:
        out, err = Path(folder, 'out'), Path(folder, 'err')
        # torch.compile keeps what it compiled: a new cache each time, since the whole job is to count it
        env = {**_environment(), 'TORCHINDUCTOR_CACHE_DIR': str(Path(folder, 'inductor'))}
        started = time.perf_counter()
        with out.open('w') as stdout, err.open('w') as stderr:
            try:
                process = subprocess.Popen([str(python), str(program), json.dumps(job)], stdout=stdout,
                                           stderr=stderr, stdin=subprocess.DEVNULL, env=env,
                                           start_new_session=True)  # a group of its own, to be ended as a whole
            except OSError as error:
                raise ContenderError(str(error)) from None
        try:
            peak_mb = _watch(process, started + timeout)
        except subprocess.TimeoutExpired:
            raise ContenderError(f'took longer than {timeout:g} s') from None
        finally:
            _end(process)
        seconds = time.perf_counter() - started
        if process.returncode:
            raise ContenderError(f'exit status {process.returncode}: {_last_line(err)}')
        return {**parse(out.read_text(errors='replace')), 'job_seconds': seconds, 'peak_mb': peak_mb}


def ceiling(python, num_cores: int) -> dict:
    """Run `ceiling.py`; name -> GFLOP/s. Empty if that fails: the contenders can be compared without."""
    program = Path(__file__).with_name('ceiling.py')
    done = subprocess.run([str(python), str(program), str(num_cores)], capture_output=True, text=True,
                          env=_environment(), check=False)
    return {} if done.returncode else json.loads(done.stdout.splitlines()[-1])


def parse(output: str) -> dict:
    """The contender's line, the last of its output; a ContenderError if there is none or it lacks something."""
    lines = output.strip().splitlines()
    try:
        line = json.loads(lines[-1])
        missing = [name for name in EXPECTED if name not in line]
    except (IndexError, TypeError, ValueError):
        last = lines[-1][:80] if lines else 'it printed nothing'
        raise ContenderError(f'no JSON in its last line: {last}') from None
    if missing:
        raise ContenderError(f'{", ".join(missing)} missing in its last line')
    return line


def _environment() -> dict:
    """This shell's variables, but for those that are settings."""
    return {name: value for name, value in os.environ.items() if not DROPPED.match(name)}


def _watch(process, deadline: float) -> float:
    """Wait for the process to end; the peak memory in MB of its group."""
    peak, looks = 0.0, 0
    while True:
        try:
            process.wait(min(POLL, max(deadline - time.perf_counter(), 0.001)))
            return peak
        except subprocess.TimeoutExpired:
            if time.perf_counter() > deadline:
                raise
        if looks % 5 == 1:  # once a second: it is looked up in tables of the kernel, which takes milliseconds
            peak = max(peak, _memory_mb(process.pid))
        looks += 1


def _memory_mb(group: int) -> float:
    """Memory in MB of a process group, shared pages counted once; 0 where there is no /proc."""
    kilobytes = 0
    for stat in glob.glob('/proc/[0-9]*/stat'):
        try:
            if int(Path(stat).read_text().rpartition(')')[2].split()[2]) == group:
                rollup = Path(stat).with_name('smaps_rollup').read_text()
                kilobytes += int(re.search(r'^Pss:\s+(\d+) kB', rollup, re.M).group(1))
        except (OSError, AttributeError):  # it has ended
            continue
    return kilobytes * 1024 / 1e6


def _end(process) -> None:
    """End what is left of the process's group, such as the workers of one that crashed."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # nothing is left
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _last_line(path: Path) -> str:
    lines = path.read_text(errors='replace').strip().splitlines()
    return lines[-1][:200] if lines else 'it said nothing'



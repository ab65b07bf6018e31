"""Two runs at the same time in one folder: the second one ends, and nothing is lost."""
import re
import signal
import subprocess

import pytest
from runs import SLOW_STEPS, altered, outcome, run, start

pytestmark = pytest.mark.slow


def test_the_second_run_ends(scratch_command, uninterrupted, tmp_path, count):
    out = tmp_path / 'run'
    command = [*scratch_command, '--out-dir', str(out)]
    with start(altered(command, SLOW_STEPS), 'epoch 1/') as first:
        first.send_signal(signal.SIGSTOP)  # so that it does not end before the second starts
        second = run([*command, '--resume', 'auto'])
        first.send_signal(signal.SIGCONT)
        assert second.returncode == 2, second.stderr
        assert second.stderr == (f'scratch: {out} is in use by another run: wait until it ends, or use another '
                                 'folder\n')
        assert first.wait(120) == 0, first.stderr.read()
    assert outcome(out) == uninterrupted
    count('a second run in the folder: rejected')


def test_two_runs_started_at_the_same_moment(scratch_command, uninterrupted, tmp_path, long, count):
    """One of them trains, no matter which."""
    for i in range(10 if long else 1):
        out = tmp_path / str(i)
        command = [*scratch_command, '--out-dir', str(out), '--resume', 'auto']
        both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
        errors = [process.communicate(timeout=120)[1] for process in both]
        codes = [process.returncode for process in both]
        assert 0 in codes, errors  # both end with 0 if one starts after the other has ended
        for code, error in zip(codes, errors):
            assert code == 0 or (code == 2 and re.fullmatch(r'scratch: .* (is in use by|is not an empty folder).*\n',
                                                            error)), error
        assert outcome(out) == uninterrupted
        count('two runs started at the same moment: one trained, nothing lost')

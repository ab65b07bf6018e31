"""Two runs at once in one folder: the second is refused by name of the first, and nothing is lost."""
import re
import signal
import subprocess

import pytest
from runs import outcome, run

pytestmark = pytest.mark.slow


def test_the_second_is_refused(scratch_command, whole, tmp_path, count):
    out = tmp_path / 'run'
    command = [*scratch_command, '--out-dir', str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as first:
        assert any(line.startswith('epoch 1/') for line in first.stdout)
        first.send_signal(signal.SIGSTOP)  # so that it is not done before the second begins
        second = run([*command, '--resume', 'auto'])
        first.send_signal(signal.SIGCONT)
        assert second.returncode == 2, second.stderr
        name = rf'the run of process {first.pid} on \S+ since [\d: -]{{19}}'
        assert re.fullmatch(rf'scratch: {out} is in use by {name}: wait until it ends, or give another --out-dir',
                            second.stderr.strip())
        assert first.wait(120) == 0, first.stderr.read()
    assert outcome(out) == whole
    count('a second run in the folder: refused by name of the first')


def test_both_at_once(scratch_command, whole, tmp_path, long, count):
    """Started at the same moment: one of them trains, whichever it is."""
    for i in range(10 if long else 1):
        out = tmp_path / str(i)
        command = [*scratch_command, '--out-dir', str(out), '--resume', 'auto']
        both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
        errors = [process.communicate(timeout=120)[1] for process in both]
        codes = [process.returncode for process in both]
        assert 0 in codes, errors  # both, if one began when the other was done
        for code, error in zip(codes, errors):
            assert code == 0 or (code == 2 and re.fullmatch(r'scratch: .* (is in use by|is not an empty folder).*\n',
                                                            error)), error
        assert outcome(out) == whole
        count('two runs started at once: one trained, nothing lost')

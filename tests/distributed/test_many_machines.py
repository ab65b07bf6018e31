"""The example many_machines.py with two workers."""
import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / 'examples' / 'many_machines.py'


def test_all_workers_end_with_the_same_parameters(job):
    text = job.completed(2, sys.executable, EXAMPLE)
    alone = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, check=True)
    sums = re.findall(r'sum of all parameters (\S+)', alone.stdout + text)
    assert len(sums) == 4 and len(set(sums)) == 1, sums

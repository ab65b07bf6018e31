"""The progress bar starts no process."""
import subprocess
import sys

BAR = """
import io, multiprocessing, psutil
multiprocessing.set_start_method('forkserver')  # the default of Python 3.14 on Linux
from gluon_mgpu.base.progress_bar import ProgressBar
with ProgressBar(total=2, file=io.StringIO()) as bar:
    bar.update(1)
    with ProgressBar.external_write_mode():
        print([child.name() for child in psutil.Process().children()])
"""


def test_a_bar_starts_no_process():
    assert subprocess.check_output([sys.executable, '-c', BAR], text=True) == '[]\n'

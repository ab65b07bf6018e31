"""The simulated hosts leave nothing behind, however the process that created them ends."""
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

# Jobs in the background ignore SIGINT
CREATE = ('import signal, sys, time\n'
          'from pathlib import Path\n'
          'from two_hosts import TwoHosts\n'
          'signal.signal(signal.SIGINT, signal.default_int_handler)\n'
          'with TwoHosts(Path(sys.argv[1])) as hosts:\n'
          '    hosts[1].run("sh", "-c", "sleep 1000 >/dev/null 2>&1 &")\n'
          '    print(hosts[0].pid, hosts[1].pid, *(p.pid for p in hosts[1].processes()), flush=True)\n'
          '    time.sleep(1000)\n')


@pytest.mark.slow
@pytest.mark.parametrize('signum', [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_removes_the_hosts(new_hosts, tmp_path, signum):
    before = psutil.net_if_addrs().keys()
    with subprocess.Popen([sys.executable, '-c', CREATE, tmp_path / 'ssh'], stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, cwd=Path(__file__).parent, text=True) as process:
        created = [psutil.Process(int(pid)) for pid in process.stdout.readline().split()]
        assert len(created) == 3
        process.send_signal(signum)
        assert psutil.wait_procs(created, timeout=10)[1] == []
    assert psutil.net_if_addrs().keys() == before

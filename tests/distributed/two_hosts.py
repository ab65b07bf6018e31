"""Two simulated hosts: network namespaces with an address each, a link between them, and sshd in both.

    with TwoHosts(folder) as hosts:
        hosts.launch                 # the start of a command that runs on both
        hosts.shape('1gbit')         # limit the link's rate
        hosts.cut()                  # cut the link

Their ports can be reached only from the two namespaces. Needs root, `ip` and `sshd`.
"""
from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ADDRESSES = '10.77.1.1', '10.77.1.2'
PORT = 2222
LAUNCHER = Path(sys.executable).with_name('horovodrun')


def obstacle() -> str:
    """Return why two hosts cannot be simulated here; '' if they can."""
    sbin = f'{os.environ.get("PATH", "")}:/usr/sbin:/sbin'
    missing = [tool for tool in ('ip', 'ssh', 'ssh-keygen', 'sshd') if not shutil.which(tool, path=sbin)]
    if missing:
        return f'no command {missing[0]}'
    if os.geteuid() != 0:
        return 'needs root, for network namespaces'
    probe = subprocess.run(['ip', 'netns', 'add', f'probe-{os.getpid()}'], capture_output=True, text=True, check=False)
    subprocess.run(['ip', 'netns', 'del', f'probe-{os.getpid()}'], capture_output=True, check=False)
    return '' if probe.returncode == 0 else f'no network namespaces: {probe.stderr.strip()}'


class TwoHosts:
    """Context manager that creates the hosts, and removes them with all their processes."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.names = [f'host-{os.getpid()}-{letter}' for letter in 'ab']
        key = folder / 'key'
        self.launch = ('ip', 'netns', 'exec', self.names[0], sys.executable, LAUNCHER, '--gloo', '-np', '2',
                       '-H', ','.join(f'{address}:1' for address in ADDRESSES), '--network-interfaces', 'eth0',
                       '--ssh-port', str(PORT), '--ssh-identity-file', str(key))
        self.environment = {'PATH': f'{folder}:{os.environ["PATH"]}'}

    def __enter__(self) -> TwoHosts:
        self._keys()
        for name in self.names:
            _run('ip', 'netns', 'add', name)
        _run('ip', 'link', 'add', 'eth0', 'netns', self.names[0], 'type', 'veth',
             'peer', 'name', 'eth0', 'netns', self.names[1])
        sshd = shutil.which('sshd', path='/usr/sbin:/sbin:' + os.environ['PATH'])
        Path('/run/sshd').mkdir(exist_ok=True)  # sshd needs this folder
        for name, address in zip(self.names, ADDRESSES):
            _run('ip', '-n', name, 'address', 'add', f'{address}/24', 'dev', 'eth0')
            for device in ('lo', 'eth0'):
                _run('ip', '-n', name, 'link', 'set', device, 'up')
            _run('ip', 'netns', 'exec', name, sshd, '-f', self._config(address))
        time.sleep(0.2)
        return self

    def __exit__(self, *error) -> None:
        for name in self.names:
            inside = subprocess.run(['ip', 'netns', 'pids', name], capture_output=True, text=True, check=False)
            for pid in inside.stdout.split():
                subprocess.run(['kill', '-9', pid], capture_output=True, check=False)
            subprocess.run(['ip', 'netns', 'del', name], capture_output=True, check=False)

    def cut(self) -> None:
        """Cut the link."""
        _run('ip', '-n', self.names[0], 'link', 'set', 'eth0', 'down')

    def mend(self) -> None:
        """Restore the link."""
        _run('ip', '-n', self.names[0], 'link', 'set', 'eth0', 'up')

    def shape(self, rate: str) -> None:
        """Limit the link to this rate in both directions, by a token bucket."""
        for name in self.names:
            _run('tc', '-n', name, 'qdisc', 'replace', 'dev', 'eth0', 'root', 'tbf', 'rate', rate, 'burst', '256kb',
                 'latency', '50ms')

    def _keys(self) -> None:
        for name in ('key', 'host_key'):
            _run('ssh-keygen', '-q', '-t', 'ed25519', '-N', '', '-f', self.folder / name)
        ssh = self.folder / 'ssh'  # ssh without the user's configuration and known hosts
        options = '-F none -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR'
        ssh.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} {options} "$@"\n')
        ssh.chmod(0o755)

    def _config(self, address: str) -> Path:
        path = self.folder / f'sshd-{address}'
        path.write_text(f'ListenAddress {address}:{PORT}\nHostKey {self.folder}/host_key\n'
                        f'AuthorizedKeysFile {self.folder}/key.pub\nPidFile none\nStrictModes no\nUsePAM no\n'
                        'PasswordAuthentication no\nPermitRootLogin prohibit-password\n')
        return path


def _run(*command) -> None:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f'{" ".join(map(str, command))}: {done.stderr.strip()}')

"""Two simulated hosts on one machine, host1 and host2, each with its own processes, network, names and mounts.

    with TwoHosts(folder) as hosts:
        hosts.launch                     # the start of a command that runs on both
        hosts.cut()                      # cut the link
        hosts[1].mount(folder, target)   # show this folder as `target` on host2 only

Each host is a set of Linux namespaces with an interface eth0 and an SSH server, and both see the files of this machine.
A host exists as long as its first process, which ends when its stdin is closed: after an error, Ctrl-C or even SIGKILL
of this process, the kernel removes all processes, mounts and interfaces of the hosts. Needs root, `ip` and `sshd`.
"""
from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil

NAMES = 'host1', 'host2'
ADDRESSES = '10.77.1.1', '10.77.1.2'
LAUNCHER = Path(sys.executable).with_name('horovodrun')
SBIN = f'{os.environ.get("PATH", os.defpath)}:/usr/sbin:/sbin'
NAMESPACES = '--mount', '--uts', '--ipc', '--net', '--pid', '--fork', '--mount-proc'
# The first process of a host; a parent that ignores SIGCHLD leaves no zombies
FIRST = ('import signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); print("ready", flush=True); '
         'sys.stdin.read()')
SSH = """Port 22
HostKey /etc/ssh/host_key
AuthorizedKeysFile /etc/ssh/key.pub
PermitRootLogin prohibit-password
PasswordAuthentication no
StrictModes no
UsePAM no
PidFile none
"""
SSH_CLIENT = 'IdentityFile /etc/ssh/key\nUserKnownHostsFile /dev/null\nStrictHostKeyChecking no\nLogLevel ERROR\n'


def obstacle() -> str:
    """Return why two hosts cannot be simulated here; '' if they can."""
    for tool, package in {'ip': 'iproute2', 'nsenter': 'util-linux', 'ssh': 'openssh-client',
                          'sshd': 'openssh-server'}.items():
        if not shutil.which(tool, path=SBIN):
            return f'the command {tool} is missing, install {package}'
    if os.geteuid() != 0:
        return 'they need root'
    probe = subprocess.run(['unshare', *NAMESPACES, 'true'], capture_output=True, text=True, check=False)
    return probe.stderr.strip()


class Host:
    """One of the hosts; `ssh` is its folder /etc/ssh. Exists until `remove`."""

    def __init__(self, name: str, address: str, ssh: Path):
        self.name, self.address = name, address
        self._unshare = subprocess.Popen(['unshare', *NAMESPACES, sys.executable, '-c', FIRST], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, start_new_session=True)
        assert self._unshare.stdout.readline() == b'ready\n'
        self.pid = psutil.Process(self._unshare.pid).children()[0].pid
        self.enter = 'nsenter', '--target', str(self.pid), '--all', '--wd'
        self.run('hostname', name)
        self.mount(ssh, '/etc/ssh')
        self.mount(ssh / 'hosts', '/etc/hosts')
        self.run('mount', '-t', 'tmpfs', 'tmpfs', '/run')
        self.run('mkdir', '/run/sshd')  # sshd requires it
        self.run('ip', 'link', 'set', 'lo', 'up')

    def run(self, *command) -> str:
        """Run a command on this host, wait for it and return its output."""
        return _run(*self.enter, *command)

    def mount(self, folder: Path | str, target: Path | str) -> None:
        """Show a folder or file as `target` on this host only."""
        self.run('mount', '--bind', folder, target)

    def edit(self, path: Path, old: str, new: str, copy: Path) -> None:
        """Replace text in a file for this host only; `copy` is where the changed copy is written."""
        text = path.read_text()
        assert old in text
        copy.write_text(text.replace(old, new))
        self.mount(copy, path)

    def serve_ssh(self) -> None:
        """Start the SSH server."""
        self.run(shutil.which('sshd', path=SBIN), '-o', f'ListenAddress={self.address}')

    def kill_all(self) -> None:
        """Kill all processes of this host at once, except the first one, without which the host would be gone."""
        self.run(sys.executable, '-c', 'import os, signal; os.kill(-1, signal.SIGKILL)')

    def processes(self) -> list[psutil.Process]:
        """Return the running processes of this host except the first one and those of the SSH server."""
        namespace, found = os.readlink(f'/proc/{self.pid}/ns/pid'), []
        for process in psutil.process_iter():
            with suppress(OSError, psutil.Error):
                if (os.readlink(f'/proc/{process.pid}/ns/pid') == namespace and process.pid != self.pid
                        and not process.name().startswith('sshd')):
                    found.append(process)
        return found

    def remove(self) -> None:
        """End this host; the kernel removes all of it."""
        self._unshare.stdin.close()
        self._unshare.stdout.close()
        self._unshare.wait(10)


class TwoHosts:
    """Context manager that creates the hosts and removes them. `folder` is for the SSH keys."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._hosts: list[Host] = []

    def __getitem__(self, i: int) -> Host:
        return self._hosts[i]

    def __enter__(self) -> TwoHosts:
        with ExitStack() as stack:
            self._prepare_ssh()
            for name, address in zip(NAMES, ADDRESSES):
                self._hosts.append(Host(name, address, self.folder))
                stack.callback(self._hosts[-1].remove)
            first, second = (host.pid for host in self._hosts)
            _run('ip', 'link', 'add', 'eth0', 'netns', first, 'type', 'veth', 'peer', 'name', 'eth0', 'netns', second)
            for host in self._hosts:
                host.run('ip', 'address', 'add', f'{host.address}/24', 'dev', 'eth0')
                host.run('ip', 'link', 'set', 'eth0', 'up')
                host.serve_ssh()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error) -> None:
        self._stack.close()

    @property
    def launch(self) -> tuple:
        """The start of a command that runs with one worker on each host, launched on host1."""
        return self.launch_on(0)

    def launch_on(self, first: int) -> tuple:
        """Return the start of a command that is launched on host `first`, which has rank 0."""
        names = [self._hosts[first].name, self._hosts[1 - first].name]
        return (*self._hosts[first].enter, sys.executable, LAUNCHER, '--gloo', '--disable-cache', '-np', '2',
                '-H', ','.join(f'{name}:1' for name in names))

    def cut(self) -> None:
        """Cut the link."""
        self._hosts[0].run('ip', 'link', 'set', 'eth0', 'down')

    def mend(self) -> None:
        """Restore the link."""
        self._hosts[0].run('ip', 'link', 'set', 'eth0', 'up')

    def shape(self, rate: str) -> None:
        """Limit the link to this rate in both directions, by a token bucket."""
        for host in self._hosts:
            host.run('tc', 'qdisc', 'replace', 'dev', 'eth0', 'root', 'tbf', 'rate', rate, 'burst', '256kb',
                     'latency', '50ms')

    def _prepare_ssh(self) -> None:
        for name in ('key', 'host_key'):
            _run('ssh-keygen', '-q', '-t', 'ed25519', '-N', '', '-f', self.folder / name)
        hosts = ''.join(f'{address} {name}\n' for name, address in zip(NAMES, ADDRESSES))
        for name, content in {'sshd_config': SSH, 'ssh_config': SSH_CLIENT,
                              'hosts': f'127.0.0.1 localhost\n{hosts}'}.items():
            (self.folder / name).write_text(content)


def _run(*command) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False,
                          env={**os.environ, 'PATH': SBIN})
    if done.returncode != 0:
        raise RuntimeError(f'{" ".join(map(str, command))}: {done.stderr.strip()}')
    return done.stdout

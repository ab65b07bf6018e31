"""Detection of lost workers: if one was killed or stopped, or its machine is gone, print its name and end the job.

Horovod itself waits half a minute for a stopped worker and does not name it. Here, each worker keeps a connection to
rank 0, and a thread at both ends sends a byte about every half second. A main thread that hangs is not noticed.
"""
from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from ..base.checks import positive
from ..base.program import show

BEAT = 0.5       # seconds between two bytes
PATIENCE = 30.0  # seconds for all workers to connect
SILENCE = '10'   # seconds without a byte after which a worker counts as lost; the default of GLUON_MGPU_WORKER_TIMEOUT
ALIVE, LEAVE, FAILED, END = b'.', b'l', b'f', b'e'


class Watchdog:
    """Thread that watches the other workers until `leave` is called.

    `address` is that of this machine for the other workers, and `name` the name of this worker in messages, such as
    ``'a, process 4711'``. `program` begins the message about a lost worker; `resume_hint` returns the end of it.
    """

    def __init__(self, rank: int, allgather: Callable[[Any], list], address: str, name: str,
                 program: str = 'gluon_mgpu', resume_hint: Callable[[], str] = str):
        self.rank, self.program, self.resume_hint = rank, program, resume_hint
        self.silence = positive('GLUON_MGPU_WORKER_TIMEOUT', os.environ.get('GLUON_MGPU_WORKER_TIMEOUT') or SILENCE)
        if self.silence < 4 * BEAT:
            raise ValueError(f'GLUON_MGPU_WORKER_TIMEOUT {self.silence:g}: must be at least {4 * BEAT:g} seconds')
        listener = socket.create_server((address, 0)) if rank == 0 else None
        gathered = allgather((listener.getsockname() if listener else None, secrets.token_bytes(16), name))
        where, token, _ = gathered[0]
        self.names = [name for _, _, name in gathered]
        self._others: dict[socket.socket, int] = {}  # connections and ranks: on rank 0 all others, elsewhere rank 0
        if listener:
            self._accept(listener, token)
        else:
            try:
                connection = socket.create_connection(where, timeout=PATIENCE)
            except OSError as error:
                raise ValueError(f'{name} cannot connect to worker 0 at {where[0]} ({error.strerror or error}): check '
                                 'that no firewall blocks connections between the machines') from None
            connection.sendall(token + rank.to_bytes(4, 'big'))
            self._others[connection] = 0
        for connection in self._others:
            connection.setblocking(False)
        self._heard = dict.fromkeys(self._others, time.monotonic())  # connections of workers that have not left
        self._leaving = False
        self._thread = threading.Thread(target=self._watch, name='watch', daemon=True)
        self._thread.start()

    def leave(self, failed: bool = False) -> None:
        """Stop watching; blocks up to 5 s. If this worker has failed, the other workers end as well."""
        self._leaving = True
        self._send(FAILED if failed else LEAVE)
        self._thread.join(timeout=5)

    def _accept(self, listener: socket.socket, token: bytes) -> None:
        """Accept the connections of the other workers. Each begins with the token and a rank; others are closed."""
        deadline = time.monotonic() + PATIENCE
        listener.settimeout(min(BEAT, PATIENCE))
        with listener:
            while missing := {*range(1, len(self.names))} - {*self._others.values()}:
                if time.monotonic() > deadline:
                    self._send(END)
                    for connection in self._others:
                        connection.close()
                    raise ValueError(f'{self._name(min(missing))} did not connect to worker 0 at '
                                     f'{listener.getsockname()[0]} in {PATIENCE:g} s: check that no firewall blocks '
                                     'connections between the machines')
                self._send(ALIVE)  # otherwise those that are connected would end the job first
                with contextlib.suppress(OSError):
                    connection, _ = listener.accept()
                    if rank := _rank_of(connection, token, timeout=self.silence / 4):
                        self._others[connection] = rank
                    else:
                        connection.close()

    def _watch(self) -> None:
        last_beat = 0.0
        selector = selectors.DefaultSelector()  # select.select() fails for descriptors of 1024 and above
        for other in self._heard:
            selector.register(other, selectors.EVENT_READ)
        while self._heard and not self._leaving:
            for key, _ in selector.select(BEAT / 2):
                connection: Any = key.fileobj
                self._receive(connection)
                if connection not in self._heard:
                    selector.unregister(connection)
            now = time.monotonic()
            if now - last_beat >= BEAT:
                if last_beat and now - last_beat > self.silence:  # this process was stopped and continues
                    self._heard = dict.fromkeys(self._heard, now)
                last_beat = now
                self._send(ALIVE)
            for other, heard in self._heard.items():
                if now - heard > self.silence:
                    self._end(f'{self._name(self._others[other])} has not answered for {self.silence:g} s: it is '
                              'stopped, or its machine or the network failed')

    def _receive(self, connection: socket.socket) -> None:
        other = self._name(self._others[connection])
        try:
            received = connection.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            received = b''
        self._heard[connection] = time.monotonic()
        if END in received:
            self._end('')
        if FAILED in received:
            self._end(f'{other} has failed' if self.rank == 0 else '')
        if LEAVE in received:
            del self._heard[connection]
        elif not received:
            self._end(f'{other} was killed or has crashed')

    def _name(self, other: int) -> str:
        return f'worker {other} of {len(self.names)} ({self.names[other]})'

    def _send(self, byte: bytes) -> None:
        for connection in [*self._others]:
            with contextlib.suppress(OSError):  # closed, or full because a stopped worker does not read
                connection.send(byte)

    def _end(self, line: str) -> None:
        """End this process immediately: the main thread may be blocked in an allreduce."""
        if self._leaving:
            return
        self._send(END)
        if line and self.rank < 2:  # if rank 0 is lost, rank 1 prints the line
            show(f'{self.program}: {line}; the job ends{self.resume_hint()}', sys.stderr)
        os._exit(1)


def _rank_of(connection: socket.socket, token: bytes, timeout: float) -> int:
    """Return the rank of the worker that has connected; 0 if it is not one of the workers."""
    connection.settimeout(timeout)  # time to send a lost packet again
    try:
        hello = connection.recv(20)
    except OSError:  # another program may send nothing
        return 0
    return int.from_bytes(hello[16:], 'big') if len(hello) == 20 and hello[:16] == token else 0

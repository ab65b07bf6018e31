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
import threading
import time
from collections.abc import Callable
from itertools import count
from typing import Any

from ..base.arguments import positive

BEAT = 0.5       # seconds between two bytes
PATIENCE = 30.0  # seconds for all workers to connect
SILENCE = '10'   # seconds without a byte after which a worker counts as lost; the default of GLUON_MGPU_WORKER_TIMEOUT
REMEDY = 'check that no firewall blocks connections between the machines'
TOKEN_BYTES = 16
ALIVE, LEAVE, FAILED, END = b'.', b'l', b'f', b'e'


def silence() -> float:
    """Return GLUON_MGPU_WORKER_TIMEOUT, by default `SILENCE`; raise ValueError if it is not a valid time."""
    seconds = positive('GLUON_MGPU_WORKER_TIMEOUT', os.environ.get('GLUON_MGPU_WORKER_TIMEOUT') or SILENCE)
    if seconds < 4 * BEAT:
        raise ValueError(f'GLUON_MGPU_WORKER_TIMEOUT {seconds:g}: must be at least {4 * BEAT:g} seconds')
    return seconds


class Watchdog:
    """Thread that watches the other workers until `leave` is called.

    `address` is that of this machine for the other workers, and `name` the name of this worker in messages, such as
    ``'a, process 4711'``. `report` prints the message about a lost worker.
    """

    def __init__(self, rank: int, allgather: Callable[[Any], list], address: str, name: str,
                 report: Callable[[str], None]):
        self.rank, self.report = rank, report
        self.silence = silence()
        listener = socket.create_server((address, 0)) if rank == 0 else None
        token = secrets.token_bytes(TOKEN_BYTES)
        places, tokens, self.names = zip(*allgather((listener and listener.getsockname(), token, name)))
        self._others: dict[socket.socket, int] = {}  # connections and ranks: on rank 0 all others, elsewhere rank 0
        if listener:
            self._accept(listener, dict(zip(tokens[1:], count(1))))
        else:
            try:
                connection = socket.create_connection(places[0], timeout=PATIENCE)
            except OSError as error:
                raise ValueError(f'{name} cannot connect to worker 0 at {places[0][0]} ({error.strerror or error}): '
                                 f'{REMEDY}') from None
            connection.sendall(token)
            self._others[connection] = 0
        self._heard = dict.fromkeys(self._others, time.monotonic())  # connections of workers that have not left
        self._selector = selectors.DefaultSelector()  # select.select() fails for descriptors of 1024 and above
        for connection in self._others:
            connection.setblocking(False)
            self._selector.register(connection, selectors.EVENT_READ)
        self._leaving = False
        self._thread = threading.Thread(target=self._watch, name='watch', daemon=True)
        self._thread.start()

    def leave(self, failed: bool = False) -> None:
        """Stop watching; blocks up to 5 s. If this worker has failed, the other workers end as well."""
        self._leaving = True
        self._send(FAILED if failed else LEAVE)
        self._thread.join(timeout=5)

    def _accept(self, listener: socket.socket, ranks: dict[bytes, int]) -> None:
        """Accept the connections of the workers in `ranks`. Each begins with the worker's token; others are closed."""
        deadline = time.monotonic() + PATIENCE
        listener.settimeout(BEAT)
        with listener:
            while ranks:
                if time.monotonic() > deadline:
                    self._send(END)
                    for connection in self._others:
                        connection.close()
                    raise ValueError(f'{self._name(min(ranks.values()))} did not connect to worker 0 at '
                                     f'{listener.getsockname()[0]} in {PATIENCE:g} s: {REMEDY}')
                self._send(ALIVE)  # otherwise those that are connected would end the job first
                with contextlib.suppress(OSError), listener.accept()[0] as connection:
                    connection.settimeout(self.silence / 4)  # time to send a lost packet again
                    if rank := ranks.pop(connection.recv(TOKEN_BYTES), 0):
                        self._others[connection.dup()] = rank

    def _watch(self) -> None:
        last_beat = time.monotonic()
        while self._heard and not self._leaving:
            for key, _ in self._selector.select(BEAT / 2):
                self._receive(key.fileobj)
            now = time.monotonic()
            if now - last_beat >= BEAT:
                if now - last_beat > self.silence:  # this process was stopped and continues
                    self._heard = dict.fromkeys(self._heard, now)
                last_beat = now
                self._send(ALIVE)
            for other, heard in self._heard.items():
                if now - heard > self.silence:
                    self._end(f'{self._name(self._others[other])} has not answered for {self.silence:g} s: it is '
                              'stopped, or its machine or the network failed')

    def _receive(self, connection: Any) -> None:
        try:
            received = connection.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            received = b''
        other = self._name(self._others[connection])
        self._heard[connection] = time.monotonic()
        if END in received:
            self._end('')
        if FAILED in received:
            self._end(f'{other} has failed' if self.rank == 0 else '')
        if LEAVE in received:
            del self._heard[connection]
            self._selector.unregister(connection)
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
            self.report(line)
        os._exit(1)

"""Workers watch each other: one that is killed or stopped, or whose machine is gone, is named, and the job ends.

Horovod's own threads wait for a stopped process half a minute, and do not say for which. Here each worker keeps a
connection to the first one, and both ends send a byte twice a second.
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

BEAT = 0.5          # seconds from one byte to the next
PATIENCE = 30.0     # seconds for all workers to connect
SILENCE = 10.0      # seconds without one, after which a worker is given up: GLUON_MGPU_WORKER_TIMEOUT
ALIVE, BYE, FAILED, END = b'.', b'b', b'f', b'e'


class Watch:
    """Watches the other workers, in a thread, from when it is made until `leave`.

    Parameters
    ----------
    rank : int
        This worker's number.
    gather : callable
        Takes a value and returns that of each worker; waits for all.
    address : str
        This machine's, where the others can reach it.
    name : str
        What this worker is called in messages, such as ``'a, process 4711'``.
    program : str
        What the line begins with, when a worker is lost.
    advice : callable
        Returns what the line ends with.
    """

    def __init__(self, rank: int, gather: Callable[[Any], list], address: str, name: str,
                 program: str = 'gluon_mgpu', advice: Callable[[], str] = str):
        self.rank, self.program, self.advice = rank, program, advice
        limit: Any = os.environ.get('GLUON_MGPU_WORKER_TIMEOUT') or SILENCE
        self.silence = positive('GLUON_MGPU_WORKER_TIMEOUT', limit)
        listener = socket.create_server((address, 0)) if rank == 0 else None
        token = secrets.token_bytes(16)
        told = gather((listener.getsockname() if listener else None, token, name))
        self.names = [name for _, _, name in told]
        where, token, _ = told[0]
        self._others: dict[socket.socket, int] = {}  # rank 0: all others; they: rank 0
        if listener:
            self._accept(listener, token)
        else:
            connection = socket.create_connection(where, timeout=PATIENCE)
            connection.sendall(token + rank.to_bytes(4, 'big'))
            self._others[connection] = 0
        self._heard = {other: time.monotonic() for other in self._others.values()}
        self._gone: set[int] = set()
        self._leaving = False
        self._thread = threading.Thread(target=self._watch, name='watch', daemon=True)
        self._thread.start()

    def leave(self, failed: bool = False) -> None:
        """End watching. The others are told that this is no accident; or, if it failed, are ended, too."""
        self._leaving = True
        self._send(FAILED if failed else BYE)
        self._thread.join(timeout=5)

    def _accept(self, listener: socket.socket, token: bytes) -> None:
        """Accept the other workers; strangers who connect and say nothing keep nobody waiting."""
        deadline = time.monotonic() + PATIENCE
        listener.setblocking(False)
        with listener, selectors.DefaultSelector() as selector:
            selector.register(listener, selectors.EVENT_READ)
            while len(self._others) < len(self.names) - 1:
                for key, _ in selector.select(timeout=BEAT):
                    connection: Any = key.fileobj
                    if connection is not listener:
                        selector.unregister(connection)
                        self._greet(connection, token)
                        continue
                    with contextlib.suppress(OSError):  # it has gone again
                        connection, _ = listener.accept()
                        selector.register(connection, selectors.EVENT_READ)
                if time.monotonic() > deadline:
                    missing = min({*range(1, len(self.names))} - {*self._others.values()})
                    raise ValueError(f'{self._name(missing)} has not connected to worker 0 at '
                                     f'{listener.getsockname()[0]} for {PATIENCE:g} s: check that nothing '
                                     'between the machines blocks connections')
            for key in selector.get_map().values():
                key.fileobj.close()  # type: ignore[union-attr]

    def _greet(self, connection: socket.socket, token: bytes) -> None:
        """Hear the first words of a connection: of another worker its number, after the token."""
        connection.settimeout(BEAT)  # they come in one piece, or soon
        hello = b''
        with contextlib.suppress(OSError):
            while len(hello) < 20 and (more := connection.recv(20 - len(hello))):
                hello += more
        if len(hello) == 20 and hello[:16] == token:
            self._others[connection] = int.from_bytes(hello[16:], 'big')
        else:
            connection.close()

    def _watch(self) -> None:
        with selectors.DefaultSelector() as selector:
            for connection in self._others:
                connection.setblocking(False)
                selector.register(connection, selectors.EVENT_READ)
            beat = 0.0
            while len(self._gone) < len(self._others) and not self._leaving:
                for key, _ in selector.select(timeout=BEAT / 2):
                    if not self._listen(key.fileobj):
                        selector.unregister(key.fileobj)
                now = time.monotonic()
                if now - beat >= BEAT:
                    if beat and now - beat > self.silence:  # this process itself was stopped, and goes on
                        self._heard = dict.fromkeys(self._heard, now)
                    beat = now
                    self._send(ALIVE)
                for other, heard in self._heard.items():
                    if other not in self._gone and now - heard > self.silence:
                        self._end(f'{self._name(other)} has not answered for {self.silence:g} s: it is stopped, or '
                                  'its machine or the network between is gone')

    def _listen(self, connection: Any) -> bool:
        """Hear what another worker says; False if it has said its last."""
        other = self._others[connection]
        try:
            words = connection.recv(4096)
        except BlockingIOError:
            return True
        except OSError:
            words = b''
        self._heard[other] = time.monotonic()
        if END in words:
            self._end('')
        if FAILED in words:
            self._end(f'{self._name(other)} has failed, as it told' if self.rank == 0 else '')
        if BYE in words:
            self._gone.add(other)
            return False
        if not words:
            self._end(f'{self._name(other)} was killed or has crashed')
        return True

    def _name(self, other: int) -> str:
        return f'worker {other} of {len(self.names)} ({self.names[other]})'

    def _send(self, word: bytes) -> None:
        for connection, other in self._others.items():
            if other not in self._gone:
                with contextlib.suppress(OSError):  # it is gone, or full of what a stopped worker did not read
                    connection.send(word)

    def _end(self, line: str) -> None:
        """End this process at once: the main thread may be waiting for what will never come."""
        if self._leaving:
            return
        self._send(END)  # to the others: told already
        if line and self.rank < 2:  # of those who miss worker 0, one tells
            show(f'{self.program}: {line}; the job ends{self.advice()}', sys.stderr)
        os._exit(1)

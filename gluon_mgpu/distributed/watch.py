"""Detection of lost workers: if one was killed or stopped, or its machine is gone, print its name and end the job.

Horovod itself waits half a minute for a stopped worker and does not name it. Here, each worker keeps a connection to
rank 0, and a thread at both ends sends a byte about every half second.

Workers that take part in different exchanges wait for each other for ever, for example if one has a batch more. So each
worker also sends rank 0 the list of its exchanges, which must be the same on all. When they come does not matter: a
worker for which the others wait for minutes is named, and the job continues.
"""
import contextlib
import math
import os
import secrets
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from ..base.arguments import positive

BEAT = 0.5       # seconds between two bytes
PATIENCE = 30.0  # seconds for all workers to connect
SILENCE = '10'   # seconds without a byte after which a worker counts as lost; the default of GLUON_MGPU_WORKER_TIMEOUT
REMEDY = 'check that no firewall blocks connections between the machines'
STALL = 120      # seconds after which a worker is named for which the others wait
TOKEN_BYTES = 16
# What a worker sends, also within the text of an exchange: it is there; it leaves, and is no longer watched; it has
# failed, so rank 0 names it and ends the job; the job ends, and somebody else has printed why
ALIVE, LEAVE, FAILED, END = CONTROL = b'\0', b'\1', b'\2', b'\3'


def silence() -> float:
    """Return GLUON_MGPU_WORKER_TIMEOUT, by default `SILENCE`; raise ValueError if it is not a valid time."""
    seconds = positive('GLUON_MGPU_WORKER_TIMEOUT', float(os.environ.get('GLUON_MGPU_WORKER_TIMEOUT') or SILENCE))
    if seconds < 4 * BEAT:
        raise ValueError(f'GLUON_MGPU_WORKER_TIMEOUT {seconds:g}: must be at least {4 * BEAT:g} seconds')
    return seconds


class Watchdog:
    """Thread that watches the other workers until `leave` is called; ``report(line, ends)`` says if the job ends.

    `address` is that of this machine for the others, `name` that of this worker in messages: ``'a, process 4711'``.
    """

    def __init__(self, rank: int, allgather: Callable[[Any], list], address: str, name: str,
                 report: Callable[[str, bool], None]):
        self.rank, self.report = rank, report
        self.silence = silence()
        listener = socket.create_server((address, 0)) if rank == 0 else None
        token = secrets.token_bytes(TOKEN_BYTES)
        places, tokens, self.names = zip(*allgather((listener and listener.getsockname(), token, name)))
        self._others: dict[socket.socket, int] = {}  # connections and ranks: on rank 0 all others, elsewhere rank 0
        if listener:
            self._accept(listener, {token: other for other, token in enumerate(tokens) if other > 0})
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
        self._recorded: deque[bytes] = deque()  # exchanges of this worker, as lines, until they are sent or compared
        self._pending = dict.fromkeys(range(len(self.names)) if rank == 0 else [rank], b'')  # lines by rank
        self._compared_at = time.monotonic()
        self._thread = threading.Thread(target=self._watch, name='watch', daemon=True)
        self._thread.start()

    def record(self, exchange: str, place: str) -> None:
        """Note that this worker takes part in an exchange, at a place such as ``'batch 6 of epoch 1'``."""
        if self._others:
            self._recorded.append(f'{exchange}\t{" ".join(place.split())}\n'.encode(errors='replace'))

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
                self._compare()
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
        if self.rank == 0:
            self._pending[self._others[connection]] += received.translate(None, b''.join(CONTROL))
        if END in received:
            self._end('')
        if FAILED in received:
            self._end(f'{other} has failed' if self.rank == 0 else '')
        if LEAVE in received:
            del self._heard[connection]
            self._selector.unregister(connection)
        elif not received:
            self._end(f'{other} was killed or has crashed')

    def _compare(self) -> None:
        """Send the exchanges of this worker; on rank 0, end the job if the next one is not the same on all workers."""
        pending = self._pending
        while self._recorded:
            pending[self.rank] += self._recorded.popleft()
        if self.rank:
            with contextlib.suppress(OSError):  # full
                pending[self.rank] = pending[self.rank][next(iter(self._others)).send(pending[self.rank]):]
            return
        while all(b'\n' in lines for lines in pending.values()):
            self._compared_at = time.monotonic()
            heads = {}
            for rank, lines in pending.items():
                heads[rank], _, pending[rank] = lines.partition(b'\n')
                if heads[rank].split(b'\t')[0] != heads[0].split(b'\t')[0]:
                    self._end(f'{self._name(0)} is at {_shown(heads[0])}, and {self._name(rank)} at '
                              f'{_shown(heads[rank])}: all workers must take the same steps, with as many batches and '
                              'evaluations')
        late = [rank for rank, lines in pending.items() if not lines]
        if len(late) in (0, len(pending)):
            self._compared_at = time.monotonic()
        elif time.monotonic() - self._compared_at > STALL:
            self._compared_at = math.inf  # once
            waiting = next(filter(None, pending.values())).partition(b'\n')[0]
            self.report(f'{self._name(late[0])} has not come in {STALL} s to {_shown(waiting)}: others wait', False)

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
            self.report(line, True)
        os._exit(1)


def _shown(line: bytes) -> str:
    exchange, _, place = line.decode(errors='replace').partition('\t')
    return f'{exchange} ({place})' if place else exchange

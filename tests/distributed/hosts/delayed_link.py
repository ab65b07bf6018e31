"""A network link between two namespaces that delays packets and loses some, as ``tc qdisc add ... netem`` does.

In user space, because many kernels, such as those of small virtual machines, do not have netem.
"""
from __future__ import annotations

import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import threading
import time

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454ca, 0x0002, 0x1000  # of linux/if_tun.h


class DelayedLink:
    """Context manager for a link between the interfaces eth0 of two namespaces, given by a process in each.

    Packets are delayed by `delay` seconds in each direction and lost with the probability `loss`.
    """

    def __init__(self, pids: list[int], delay: float, loss: float, seed: int = 0):
        self.delay, self.loss, self.lost = delay, loss, 0
        self._random = random.Random(seed)
        self._taps: list[int] = []
        self._wake, self._closing = os.pipe()
        for pid in pids:
            tap = os.open('/dev/net/tun', os.O_RDWR | os.O_NONBLOCK)  # the interface exists until this is closed
            self._taps.append(tap)
            name = fcntl.ioctl(tap, TUNSETIFF, struct.pack('16sH22x', b'tap%d', IFF_TAP | IFF_NO_PI))[:16]
            subprocess.run(['ip', 'link', 'set', name.rstrip(b'\0').decode(), 'netns', str(pid), 'name', 'eth0'],
                           check=True)
        self._thread = threading.Thread(target=self._relay, daemon=True)

    def __enter__(self) -> DelayedLink:
        self._thread.start()
        return self

    def __exit__(self, *error) -> None:
        os.close(self._closing)
        self._thread.join()
        for descriptor in (self._wake, *self._taps):
            os.close(descriptor)

    def _relay(self) -> None:
        pending: list[tuple[float, int, int, bytes]] = []  # (time, number, interface, packet)
        number = 0
        while True:
            wait = max(0, pending[0][0] - time.monotonic()) if pending else None
            ready = select.select([self._wake, *self._taps], [], [], wait)[0]
            if self._wake in ready:
                return
            for tap in ready:
                packet = os.read(tap, 65536)
                if self._random.random() < self.loss:
                    self.lost += 1
                    continue
                number += 1
                other = self._taps[1 - self._taps.index(tap)]
                heapq.heappush(pending, (time.monotonic() + self.delay, number, other, packet))
            while pending and pending[0][0] <= time.monotonic():
                _, _, other, packet = heapq.heappop(pending)
                try:
                    os.write(other, packet)
                except OSError:  # the interface is down
                    self.lost += 1

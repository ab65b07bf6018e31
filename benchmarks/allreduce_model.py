"""Cost of each allreduce algorithm in the alpha-beta model. Needs neither MXNet nor the package.

A message of n bytes takes alpha + beta n seconds: alpha is its latency, beta the time per byte. A device sends one
message and receives one at a time; additions cost nothing; all pairs of devices are alike.
"""
from __future__ import annotations

from typing import NamedTuple


class Cost(NamedTuple):
    """Cost of an allreduce on k devices; sizes are multiples of an array."""

    messages: int   # one after another, on the slowest path
    size: float     # of these messages together
    busiest: float  # sent and received by the busiest device

    def seconds(self, num_bytes: float, alpha: float, beta: float) -> float:
        """Return the time for arrays of `num_bytes`."""
        return self.messages * alpha + self.size * num_bytes * beta


def star(k: int) -> Cost:
    """Return the cost of receiving k - 1 messages on the first device, then sending k - 1 from there."""
    return Cost(messages=2 * (k - 1), size=2 * (k - 1), busiest=2 * (k - 1))


def ring(k: int) -> Cost:
    """Return the cost of 2 (k - 1) steps, in each of which every device sends one chunk and receives one."""
    return Cost(messages=2 * (k - 1), size=2 * (k - 1) / k, busiest=4 * (k - 1) / k)


def tree(k: int) -> Cost:
    """Return the cost of the slowest path from the root to a device, up and down.

    A parent serves its left child first, so the right child waits for two messages. Counted from 1, device n has the
    children 2 n and 2 n + 1: each binary digit of n after the first is a level, and each 1 among them a turn to the
    right. So device n is reached after (number of digits - 1) + (number of ones - 1) messages.
    """
    messages = 2 * max(n.bit_length() + bin(n).count('1') - 2 for n in range(1, k + 1))
    neighbours = min(3, (k + 1) // 2) if k > 1 else 0  # of the busiest: one of 2 devices, two of 3 or 4, three of more
    return Cost(messages, messages, 2 * neighbours)


def halving_doubling(k: int) -> Cost:
    """Return the cost of messages of 1/2, 1/4, ... of an array each way, which all pairs exchange at the same time."""
    power = 2**(k.bit_length() - 1)  # of two, the largest up to k
    messages, size = 2 * (k.bit_length() - 1), 2 * (power - 1) / power
    whole = 2 if k > power else 0    # arrays, one after another: from a device beyond `power`, and to it
    return Cost(messages + whole, size + whole, busiest=2 * size + whole)


# By the names of `--allreduce`
COSTS = {'star': star, 'ring': ring, 'tree': tree, 'halving-doubling': halving_doubling, 'kvstore': star}

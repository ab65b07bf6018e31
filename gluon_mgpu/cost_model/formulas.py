"""The alpha-beta model of an allreduce on k devices.

A message of n bytes takes alpha + beta n seconds: alpha is its latency, beta the time per byte. A device sends one
message and receives one at a time; additions cost nothing; all pairs of devices are alike.

In all functions, `num_bytes` is the size of the array on each device.
"""


def star_time(k: int, num_bytes: float, alpha: float, beta: float) -> float:
    """Return the seconds of `allreduce.star`: the first device receives k - 1 messages, then sends k - 1."""
    # 2 (k - 1) (alpha + beta N)
    return 2 * (k - 1) * (alpha + beta * num_bytes)


def ring_time(k: int, num_bytes: float, alpha: float, beta: float) -> float:
    """Return the seconds of `allreduce.ring`: in each of 2 (k - 1) steps, every device sends a chunk to the next."""
    # 2 (k - 1) (alpha + beta N / k)
    return 2 * (k - 1) * (alpha + beta * num_bytes / k)


def tree_time(k: int, num_bytes: float, alpha: float, beta: float) -> float:
    """Return the seconds of `allreduce.tree`: the slowest path from the root to a device, up and down.

    A parent serves its left child first, so the right child waits for two messages. Counted from 1, device n has the
    children 2 n and 2 n + 1: each binary digit of n after the first is a level, and each 1 among them a turn to the
    right. So device n is reached after (number of digits - 1) + (number of ones - 1) messages.
    """
    # 2 max(digits(n) + ones(n) - 2 for n <= k) (alpha + beta N)
    messages = max(n.bit_length() + bin(n).count('1') - 2 for n in range(1, k + 1))
    return 2 * messages * (alpha + beta * num_bytes)


TIMES = {'star': star_time, 'ring': ring_time, 'tree': tree_time, 'kvstore': star_time}


def busiest_bytes(algorithm: str, k: int, num_bytes: float) -> float:
    """Return the bytes that the busiest of k devices sends and receives in total; `algorithm` is a key of `TIMES`."""
    if algorithm == 'ring':
        return 4 * (k - 1) / k * num_bytes
    # Neighbours of the busiest device; in a tree, one with 2 devices, two with 3 or 4, three with more
    neighbours = min(3, (k + 1) // 2) if algorithm == 'tree' else k - 1
    return 2 * neighbours * num_bytes if k > 1 else 0

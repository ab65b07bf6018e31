"""The alpha-beta model: what an allreduce takes on k devices, by formulas.

A message of n bytes takes alpha + beta n seconds: alpha is its latency, beta the time of a byte. A device
sends one message and receives one at a time; additions cost nothing; all pairs of devices are alike.
"""


def star_time(k: int, num_bytes: float, alpha: float, beta: float) -> float:
    """Seconds of `allreduce.star` by the model: the hub receives k - 1 messages, then sends k - 1.

    Parameters
    ----------
    k : int
        Devices.
    num_bytes : float
        Of the array on each device.
    alpha : float
        Seconds that a message takes, however short.
    beta : float
        Seconds per byte.
    """
    # 2 (k - 1) (alpha + beta N)
    return 2 * (k - 1) * (alpha + beta * num_bytes)


def ring_time(k: int, num_bytes: float, alpha: float, beta: float) -> float:
    """Seconds of `allreduce.ring` by the model: 2 (k - 1) steps, in each a chunk from every device to the next.

    Parameters
    ----------
    k : int
        Devices.
    num_bytes : float
        Of the array on each device.
    alpha : float
        Seconds that a message takes, however short.
    beta : float
        Seconds per byte.
    """
    # 2 (k - 1) (alpha + beta N / k)
    return 2 * (k - 1) * (alpha + beta * num_bytes / k)


def tree_time(k: int, num_bytes: float, alpha: float, beta: float) -> float:
    """Seconds of `allreduce.tree` by the model: the slowest path from the root to a device, up and down.

    A parent serves its left child in one message's time and its right child in two, as that waits for the
    left one. Counted from 1, device n has the children 2 n and 2 n + 1: each binary digit of n after the first
    is a level, and each that is 1 a turn to the right. So it is reached after (digits of n - 1) +
    (ones of n - 1) messages.

    Parameters
    ----------
    k : int
        Devices.
    num_bytes : float
        Of the array on each device.
    alpha : float
        Seconds that a message takes, however short.
    beta : float
        Seconds per byte.
    """
    # 2 max(digits(n) + ones(n) - 2 for n <= k) (alpha + beta N)
    messages = max(n.bit_length() + bin(n).count('1') - 2 for n in range(1, k + 1))
    return 2 * messages * (alpha + beta * num_bytes)


TIMES = {'star': star_time, 'ring': ring_time, 'tree': tree_time, 'kvstore': star_time}


def busiest_bytes(algorithm: str, k: int, num_bytes: float) -> float:
    """Bytes that the busiest of k devices sends and receives, both together, by the formulas of `allreduce`.

    Parameters
    ----------
    algorithm : str
        A key of `TIMES`.
    k : int
        Devices.
    num_bytes : float
        Of the array on each device.
    """
    if algorithm == 'ring':
        return 4 * (k - 1) / k * num_bytes
    # In the tree, the most neighbours of a device: one of 2 devices, two of 3 and 4, three of more
    neighbours = min(3, (k + 1) // 2) if algorithm == 'tree' else k - 1
    return 2 * neighbours * num_bytes if k > 1 else 0

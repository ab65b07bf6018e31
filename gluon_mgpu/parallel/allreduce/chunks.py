"""Allreduce algorithms that send parts of arrays: more messages, and the least traffic at the busiest device."""
from __future__ import annotations

from ...data.shards import shard_rows
from .algorithm import Cost, Traffic, algorithm


# In each of 2 (k - 1) steps, every device sends one chunk and receives one
@algorithm(cost=lambda k: Cost(messages=2 * (k - 1), size=2 * (k - 1) / k, busiest=4 * (k - 1) / k))
def ring(data: list) -> Traffic:
    """Send chunks around a ring, so that all devices send at the same time.

    The arrays are cut into k chunks. Chunk c starts on device c and moves to the next device 2 (k - 1) times. In the
    first k - 1 steps, each device adds its own part (reduce-scatter); then the chunk is the sum. In the other k - 1
    steps, each device keeps a copy (all-gather).

    If k does not divide the number of elements, chunks are uneven, or fewer than k. Source: Patarasuk and Yuan,
    Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009.
    """
    traffic, k = Traffic(data), len(data)
    devices = [array.ctx for array in data]
    chunks = _chunks(data)
    for step in range(2 * (k - 1)):
        # First all devices send, then all write. Otherwise each device would wait for the one before, because MXNet
        # does not read an array while a part of it is written, and each chunk is a part of an array.
        arrived = [traffic.send(chunk[(c + step) % k], devices[(c + step + 1) % k])
                   for c, chunk in enumerate(chunks)]
        for c, (chunk, message) in enumerate(zip(chunks, arrived)):
            target = chunk[(c + step + 1) % k]
            if step < k - 1:
                target += message        # reduce-scatter
            else:
                message.copyto(target)   # all-gather
    return traffic


def _chunks(data: list) -> list:
    """Return the non-empty chunks of the arrays, as even as possible: chunks[c][i] is chunk c on device i."""
    k, n = len(data), data[0].size
    flat = [array.as_nd_ndarray().reshape(-1) for array in data]  # np.ndarray.reshape would copy
    return [[f[shard_rows(n, c, k)].as_np_ndarray() for f in flat] for c in range(min(k, n))]

"""Allreduce algorithms that send parts of arrays: more messages, and the least traffic at the busiest device."""
from ...data.shards import shard_rows
from .traffic import Traffic


def ring(data: list) -> Traffic:
    """Send chunks around a ring, so that all devices send at the same time.

    Of k chunks of the arrays, chunk c starts on device c and moves to the next device 2 (k - 1) times. In the first
    k - 1 steps, each device adds its own part (reduce-scatter); then the chunk is the sum. In the other k - 1 steps,
    each device keeps a copy (all-gather). Source: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for
    clusters of workstations, 2009.
    """
    traffic, k, n = Traffic(data), len(data), data[0].size
    devices = [array.ctx for array in data]
    flat = _flat(data)
    chunks = [[array[shard_rows(n, c, k)] for array in flat] for c in range(min(k, n))]  # chunks[c][i] is on device i
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


def halving_doubling(data: list) -> Traffic:
    """Exchange halves of the arrays between pairs of devices, then quarters of them between other pairs, and so on.

    The arrays are cut into k chunks, a power of two. The numbers of two partners differ in one binary digit. In each
    step, a device sends the half of its block (first the whole array) that belongs to its partner, adds what it
    receives to its own half, and keeps only that as its block (reduce-scatter). After log2 k steps, block i is chunk i,
    the sum. Then the same pairs, in reverse order, exchange their blocks, which doubles them (all-gather).

    With other k, each device beyond the largest power of two first adds its array to that of a device below it, and
    gets the sum from there at the end. Source: Thakur, Rabenseifner and Gropp, Optimization of Collective
    Communication Operations in MPICH, 2005.
    """
    traffic, n = Traffic(data), data[0].size
    power = 2**(len(data).bit_length() - 1)  # of two, the largest up to k
    flat = _flat(data)
    begins = [*(shard_rows(n, c, power).start for c in range(power)), n]

    def block(device, chunk, size):
        """Return the block of `size` chunks that `chunk` belongs to, on a device."""
        first = chunk - chunk % size
        return flat[device][begins[first]:begins[first + size]]

    for extra, target in zip(data[power:], data):
        target += traffic.send(extra, target.ctx)
    sizes = [2**i for i in range(power.bit_length() - 1)]
    for size in reversed(sizes):  # reduce-scatter; as in `ring`, all devices send before they write
        arrived = [traffic.send(block(i ^ size, i, size), data[i].ctx) for i in range(power)]
        for i, message in enumerate(arrived):
            target = block(i, i, size)
            target += message
    for size in sizes:            # all-gather
        arrived = [traffic.send(block(i ^ size, i ^ size, size), data[i].ctx) for i in range(power)]
        for i, message in enumerate(arrived):
            message.copyto(block(i, i ^ size, size))
    for extra, source in zip(data[power:], data):
        traffic.copy(source, extra)
    return traffic


def _flat(data: list) -> list:
    """Return each array as one dimension, without copying it, as np.ndarray.reshape would."""
    return [array.as_nd_ndarray().reshape(-1).as_np_ndarray() for array in data]

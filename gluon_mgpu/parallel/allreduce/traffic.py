"""Traffic of an allreduce: the copies between devices, counted in bytes."""
import numpy


class Traffic:
    """Bytes that each device `sent` and `received`, two dicts; raises ValueError for `data` that cannot be summed."""

    def __init__(self, data: list):
        if not data:
            raise ValueError('the list of arrays is empty: give one array per device')
        devices = [array.ctx for array in data]
        for i, array in enumerate(data):
            if array.shape != data[0].shape or array.dtype != data[0].dtype:
                raise ValueError(f'array {i} is {_kind(array)} and array 0 is {_kind(data[0])}: all must have the '
                                 'same shape and dtype')
            if array.ctx in devices[:i]:
                raise ValueError(f'array {i} is on {array.ctx}, and so is array {devices.index(array.ctx)}: give '
                                 'one array per device')
        self.sent, self.received = dict.fromkeys(devices, 0), dict.fromkeys(devices, 0)

    def send(self, source, device):
        """Return a copy of `source` on another device."""
        self.count(source, device)
        return source.as_in_ctx(device)

    def copy(self, source, target) -> None:
        """Copy `source` into `target`, an array on another device."""
        self.count(source, target.ctx)
        source.copyto(target)

    def count(self, source, device) -> None:
        """Count `source` as sent to another device."""
        num_bytes = source.size * numpy.dtype(source.dtype).itemsize
        self.sent[source.ctx] += num_bytes
        self.received[device] += num_bytes


def _kind(array) -> str:
    return f'{numpy.dtype(array.dtype)} {array.shape}'

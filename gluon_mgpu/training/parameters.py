"""The parameters of what is trained, whichever way they are kept: by a Gluon network or as lists of arrays.

Can be imported without MXNet.
"""
from __future__ import annotations

from typing import Any

import numpy


def copies(net: Any) -> dict[str, list]:
    """Return every parameter's copies, one per device, by its name; does not wait.

    Parameters
    ----------
    net : gluon.Block or list of lists of np.ndarray
        A network, or the parameters on each device, which are named by their number then.

    Returns
    -------
    dict of str to list of np.ndarray
        The arrays themselves.
    """
    if hasattr(net, 'collect_params'):
        return {name: param.list_data() for name, param in net.collect_params().items()}
    return {f'parameter {i}': list(on_devices) for i, on_devices in enumerate(zip(*net))}


def trainable(net: Any) -> list:
    """Return the parameters of a Gluon network that have gradients: what a Trainer is to be given.

    Given all, as in the book, it copies batch norm's running statistics from the first device to the others at its
    first step; and with a hybridized network, whose statistics MXNet does not wait for, now and then it puts back
    those from before the first batch.

    Parameters
    ----------
    net : gluon.Block or what `hybridized` makes of one

    Returns
    -------
    list of gluon.Parameter
    """
    return [param for param in net.collect_params().values() if param.grad_req != 'null']


def not_finite(net: Any) -> str:
    """Return the name of a parameter that holds NaN or infinity on some device, '' if none does; waits."""
    for name, arrays in copies(net).items():
        if not all(numpy.isfinite(array.asnumpy()).all() for array in arrays):
            return name
    return ''


def wait() -> None:
    """Wait until all devices are done."""
    from ..mxnet_setup.compat import npx
    npx.waitall()

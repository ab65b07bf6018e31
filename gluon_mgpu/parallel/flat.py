"""The parameters of one device side by side in one array, and their gradients in another.

LeNet has eight parameters. Summing their gradients over the devices one by one, and updating them one
by one, takes eight small operations where one does the same; and it is Python that has to start them.
"""
from __future__ import annotations

from ..mxnet_setup.compat import Context, autograd, np


class FlatParams(list):
    """Parameters copied to a device, with gradients attached: a list of arrays that share their memory.

    Parameters
    ----------
    params : list of np.ndarray
        Of any shapes, of one dtype; they stay as they are.
    device : mx.Context
        Where the copies are.

    Attributes
    ----------
    flat : np.ndarray, (number of all elements,)
        The memory of all parameters: changing it changes them. ``flat.grad`` is that of all gradients.
    """

    def __init__(self, params: list, device: Context):
        self.flat = np.concatenate([p.as_in_ctx(device).reshape(-1) for p in params])
        self.flat.attach_grad()
        super().__init__(_views(self.flat, params))
        autograd.mark_variables(self, _views(self.flat.grad, params))


def in_one_piece(params: list) -> list:
    """Return a list of few arrays that hold all `params`: of `FlatParams` a single one, else `params` itself."""
    return [params.flat] if isinstance(params, FlatParams) else params


def _views(flat, params) -> list:
    """Parts of `flat` in the shapes of `params`."""
    flat = flat.as_nd_ndarray()  # an np.ndarray would copy to reshape
    views, start = [], 0
    for p in params:
        views.append(flat[start:start + p.size].reshape(p.shape).as_np_ndarray())
        start += p.size
    return views

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
    signature : tuple
        Shapes and dtypes of the parameters, for `hybridized`, which else asks for them at each call.

    Raises
    ------
    TypeError
        If an element is replaced by another array: it would lie elsewhere, and not be trained.
    """

    def __init__(self, params: list, device: Context):
        self.flat = np.concatenate([p.as_in_ctx(device).reshape(-1) for p in params])
        self.flat.attach_grad()
        super().__init__(_views(self.flat, params))
        self.signature = tuple((p.shape, p.dtype) for p in self)
        autograd.mark_variables(self, _views(self.flat.grad, params))

    def __setitem__(self, i, value):
        if value is not self[i]:  # params[i] -= ... changes the array in place, and is fine
            raise TypeError('a parameter cannot be replaced by another array, since all lie in one: write into it, '
                            'params[i][:] = value')


def in_one_piece(params: list) -> list:
    """Return a list of few arrays that hold all `params`: of `FlatParams` a single one, else `params` itself."""
    return [params.flat] if isinstance(params, FlatParams) else params


def gradients_in_one_piece(params: list) -> tuple[list, list]:
    """Put the gradients of a Gluon network's parameters side by side, their values too; does not wait.

    Only the gradients: weights that share memory could not be brought into the layouts that oneDNN wants.

    Parameters
    ----------
    params : list of gluon.Parameter
        Initialized on the same devices, of one dtype. Their gradients are other arrays afterwards.

    Returns
    -------
    flat : list of np.ndarray, (number of all elements,)
        On each device, the memory of all gradients.
    gradients : list of lists of np.ndarray
        On each device, the parts of it that are the parameters' gradients.
    """
    flat, gradients = [], []
    for i, _ in enumerate(params[0].list_ctx()):
        data = [param.list_data()[i] for param in params]
        flat.append(np.concatenate([param.list_grad()[i].reshape(-1) for param in params]))
        gradients.append(_views(flat[-1], data))
        fresh = [array._fresh_grad for array in data]
        autograd.mark_variables(data, gradients[-1], [param.grad_req for param in params])
        for param, array, gradient, is_fresh in zip(params, data, gradients[-1], fresh):
            param._grad[i], array._fresh_grad = gradient, is_fresh  # written by a backward pass, as before
    return flat, gradients


def _views(flat, params) -> list:
    """Parts of `flat` in the shapes of `params`."""
    flat = flat.as_nd_ndarray()  # an np.ndarray would copy to reshape
    views, start = [], 0
    for p in params:
        views.append(flat[start:start + p.size].reshape(p.shape).as_np_ndarray())
        start += p.size
    return views

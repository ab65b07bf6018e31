"""The parameters of a device in one array, and their gradients in another: one operation per sum or update."""
from __future__ import annotations

from ..mxnet_setup.compat import Context, autograd, np


class FlatParams(list):
    """Copies of parameters of one dtype on a device, with gradients attached: a list of parts of one array, `flat`.

    Changing ``flat`` changes the parameters, and ``flat.grad`` contains all gradients.
    """

    def __init__(self, params: list, device: Context):
        params = list(params)
        dtypes = sorted({str(param.dtype) for param in params})
        if len(dtypes) != 1:
            raise ValueError(f'{len(params)} params of dtypes {dtypes}: must be arrays of one dtype, at least one')
        self.flat = np.concatenate([p.as_in_ctx(device).reshape(-1) for p in params])
        self.flat.attach_grad()
        super().__init__(_views(self.flat, params))
        autograd.mark_variables(self, _views(self.flat.grad, params))
        for p in self:
            p.attach_grad = _raise_attached

    def __setitem__(self, i, value):
        if value is not self[i]:  # params[i] -= ... changes the array in place, and is fine
            raise TypeError('a parameter cannot be replaced by another array, because all parameters are parts of one: '
                            'write into it, params[i][:] = value')


def _raise_attached(*args, **kwargs) -> None:
    raise TypeError('the parameters have gradients already, parts of one array: to set one to zero, write into it, '
                    'param.grad[:] = 0')


def flattened(params: list) -> list:
    """Return ``[params.flat]`` for `FlatParams`, which holds all parameters; return other lists as they are."""
    return [params.flat] if isinstance(params, FlatParams) else params


def flatten_gradients(params: list) -> list:
    """Move the gradients of Gluon parameters into one array per device; return these arrays; does not block.

    The parameters have one dtype and are initialized on the same devices. Their values stay where they are, because
    oneDNN could not change the layout of weights that share memory.
    """
    flat = []
    for i, _ in enumerate(params[0].list_ctx()):
        data = [param.list_data()[i] for param in params]
        flat.append(np.concatenate([param.list_grad()[i].reshape(-1) for param in params]))
        gradients = _views(flat[-1], data)
        fresh = [array._fresh_grad for array in data]  # mark_variables resets it
        autograd.mark_variables(data, gradients, [param.grad_req for param in params])
        for param, array, gradient, is_fresh in zip(params, data, gradients, fresh):
            param._grad[i], array._fresh_grad = gradient, is_fresh
    return flat


def _views(flat, params) -> list:
    """Return consecutive parts of `flat` with the shapes of `params`."""
    flat = flat.as_nd_ndarray()  # np.ndarray.reshape would copy
    views, start = [], 0
    for p in params:
        views.append(flat[start:start + p.size].reshape(p.shape).as_np_ndarray())
        start += p.size
    return views

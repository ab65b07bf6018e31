"""The gradients of a device in one array: one operation per sum."""
from itertools import accumulate

from ..mxnet_setup.compat import autograd, np


def flatten_gradients(params: list) -> list:
    """Move the gradients of Gluon parameters of one dtype into one array per device; return these; does not block."""
    # Not the values as well, because oneDNN could not change the layout of shared memory
    flat, ends = [], [*accumulate(param.list_data()[0].size for param in params)]
    for i, _ in enumerate(params[0].list_ctx()):
        data = [param.list_data()[i] for param in params]
        flat.append(np.concatenate([param.list_grad()[i].reshape(-1).as_np_ndarray() for param in params]))
        joined = flat[-1].as_nd_ndarray()  # np.ndarray.reshape would copy
        views = [joined[end - array.size:end].reshape(array.shape) for array, end in zip(data, ends)]
        gradients = [view.as_np_ndarray() if isinstance(array, np.ndarray) else view
                     for array, view in zip(data, views)]
        fresh = [array._fresh_grad for array in data]  # mark_variables resets it
        autograd.mark_variables(data, gradients, [param.grad_req for param in params])
        for param, array, gradient, is_fresh in zip(params, data, gradients, fresh):
            param._grad[i], array._fresh_grad = gradient, is_fresh
    return flat

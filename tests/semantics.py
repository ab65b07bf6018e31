"""Arrays and networks of ``mx.np`` and ``mx.nd``."""
import contextlib

from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, mx, np, npx

KINDS = ['np', 'nd'] if MXNET_MAJOR < 2 else ['np']  # MXNet 2 has no networks of mx.nd


@contextlib.contextmanager
def semantics(kind):
    """Run the block as after ``npx.reset_np()`` if `kind` is 'nd'; return ``np.array`` or ``mx.nd.array``."""
    if kind == 'np' or MXNET_MAJOR >= 2:
        yield getattr(mx, kind).array
        return
    try:
        with mx.util.np_array(False), mx.util.np_shape(False):
            yield mx.nd.array
    finally:
        mx.util.set_np_shape(2)  # again in all threads


def array(data, **options):
    """Return an array of the present semantics."""
    return (np if npx.is_np_array() else mx.nd).array(data, **options)

"""Arrays and networks of ``mx.np`` and ``mx.nd``."""
import contextlib

from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, mx, nd_semantics, np, npx

KINDS = ['np', 'nd'] if MXNET_MAJOR < 2 else ['np']  # MXNet 2 has no networks of mx.nd


@contextlib.contextmanager
def semantics(kind):
    """Run the block as after ``npx.reset_np()`` if `kind` is 'nd'; return ``np.array`` or ``mx.nd.array``."""
    with contextlib.nullcontext() if kind == 'np' else nd_semantics():
        yield getattr(mx, kind).array


def array(data, **options):
    """Return an array of the present semantics."""
    return (np if npx.is_np_array() else mx.nd).array(data, **options)

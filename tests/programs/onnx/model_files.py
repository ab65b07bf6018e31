"""The files of a network, and changes to its graph."""
import contextlib
import json
from pathlib import Path

from gluon_mgpu.mxnet_setup.compat import mx

FILES = ['net-symbol.json', 'net-0000.params']


def save(network, **params):
    """Write a symbol and its parameters."""
    network.save(FILES[0], remove_amp_cast=False)
    mx.nd.save(FILES[1], {name: mx.nd.array(array) for name, array in (params or {'unused': [1]}).items()})


@contextlib.contextmanager
def changed_graph(path=FILES[0]):
    """Yield the graph in a file, whose changes are written."""
    graph = json.loads(Path(path).read_text())
    yield graph
    Path(path).write_text(json.dumps(graph))

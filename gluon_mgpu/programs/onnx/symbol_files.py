"""Networks in MXNet's files: NAME-symbol.json and NAME-0000.params of ``net.export``, ``Module`` or ``sym.save``."""
import json
import re
import warnings
from collections.abc import Sequence
from typing import Any

import numpy

from ...base.files import open_file, read_file
from ...base.program import reason
from ...mxnet_setup.compat import MXNET_MAJOR, gluon, graph_from_json, mx, nd_semantics, np
from ...networks.graph_operators import operators_of
from .file_graph import SEED, example, in_float32, output_names, safe, without_label
from .graph import semantics_of


def load_files(symbol_file: str, params_file: str, shapes: Sequence[tuple], float32: bool) -> tuple:
    """Return a network, random examples of its inputs by name, names of its outputs, and a line about these."""
    # `shapes` has shape and dtype of an example of each input; `float32` converts the network to that
    symbol, is_numpy = _read_symbol(symbol_file, float32)
    make = np.array if is_numpy else mx.nd.array
    params = _with_prefix(symbol, _read_params(params_file, float32))
    with semantics_of(make([0])), warnings.catch_warnings():
        warnings.simplefilter('ignore')  # MXNet's about unknown dtypes
        names = _input_names(symbol, params, params_file, len(shapes))
        inputs = [mx.sym.var(name) for name in names]
        if is_numpy:
            symbol, inputs = symbol.as_np_ndarray(), [each.as_np_ndarray() for each in inputs]
        net = gluon.SymbolBlock(symbol, inputs)
        for param in net.collect_params().values():
            array = params[param.var().name]
            param.shape = array.shape
            param._load_init(array, mx.cpu(), True, 'saved')  # with the dtype of the array
    operators, results = operators_of(symbol)
    rng = numpy.random.default_rng(SEED)
    examples = [example(operators, params, name, shape, dtype, rng) for name, (shape, dtype) in zip(names, shapes)]
    words = '; '.join(words for _, words in examples)
    return (net, {name: make(X, dtype=X.dtype) for name, (X, _) in zip(names, examples)},
            output_names(operators, results), f'example: {words}; seed {SEED}')


def _read_symbol(path: str, float32: bool) -> tuple[Any, bool]:
    """Read NAME-symbol.json, without losses at its end; return the graph, and True if it is for arrays of ``mx.np``."""
    try:
        graph = safe(json.loads(read_file(path), object_hook=in_float32 if float32 else None))
        graph['nodes'] = [without_label(node) for node in graph['nodes']]
        return graph_from_json(graph), MXNET_MAJOR >= 2 or 'is_np_shape' in graph.get('attrs', {})
    except NotImplementedError as error:
        raise ValueError(f'{path}: {error}') from None
    except mx.MXNetError as error:
        raise ValueError(f'{path}: MXNet {mx.__version__} cannot read this graph, {reason(error)}: use the version '
                         'that wrote it; for a custom operator, import the module that registers it, and pass '
                         'SymbolBlock.imports(...) to to_onnx, or cut the file, as in docs/export.md') from error
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(f'{path}: the first file must be NAME-symbol.json of net.export, Module or sym.save, and the '
                         'second one NAME-0000.params') from error


def _read_params(path: str, float32: bool) -> dict[str, Any]:
    """Read NAME-0000.params, without ``arg:`` and ``aux:`` in the names."""
    with open_file(path):  # OSError for what is no file
        try:
            arrays = _load(path) or {}  # [] if a network has no parameters
            params = {re.sub('^(arg|aux):', '', name): array for name, array in arrays.items()}
        except (AttributeError, ValueError, mx.MXNetError) as error:
            raise ValueError(f'{path}: the second file must be NAME-0000.params, the parameters that net.export, '
                             'Module or collect_params().save has written') from error
    for name, array in params.items():
        dtype = numpy.dtype(array.dtype)
        if dtype.kind in 'fV' and dtype != 'float32':  # V: bfloat16
            if not float32:
                raise ValueError(f'{path}: {name} is {(dtype.names or [dtype])[0]}: add --float32 for a model in '
                                 'float32')
            params[name] = array.astype('float32')
    return params


def _load(path: str) -> Any:
    """Load arrays of ``mx.np`` or ``mx.nd``: MXNet needs the semantics with which they were written."""
    try:
        return mx.nd.load(path)
    except mx.MXNetError:
        with nd_semantics():
            return mx.nd.load(path)


def _with_prefix(symbol: Any, params: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters by their names in the graph, also if save_params has removed what these begin with."""
    names, first = {*symbol.list_inputs()}, next(iter(params), '')
    for prefix in [name.removesuffix(first) for name in names - params.keys() if name.endswith(f'_{first}')]:
        if names >= {prefix + name for name in params}:
            return {prefix + name: array for name, array in params.items()}
    return params


def _input_names(symbol: Any, params: dict, params_file: str, number: int) -> list[str]:
    """Return the names of the inputs; raise ValueError unless there are `number` of them."""
    names = [name for name in symbol.list_inputs() if name not in params]
    if names and len(names) == number:
        return names
    if params and names == symbol.list_inputs():
        raise ValueError(f'{params_file}: has {next(iter(params))} and other parameters, but none of this network: '
                         'pass NAME-0000.params of net.export; a file of save_parameters must be loaded into the code '
                         'of the network before net.export')
    raise ValueError(f'--shape: must be given once for each input of the network, which are those that {params_file} '
                     f'does not have: {", ".join(names[:9])}{", ..." * (len(names) > 9)}')

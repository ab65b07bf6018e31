"""Export of trained networks as ONNX models, for onnxruntime and other programs.

    python -m gluon_mgpu.export runs/ONE                      # runs/ONE/model.onnx
    python -m gluon_mgpu.export runs/ONE --out lenet.onnx
    python -m gluon_mgpu.scratch --export lenet.onnx          # at the end of training

    python -m gluon_mgpu.export net-symbol.json net-0000.params --shape 1,3,224,224    # files of net.export: net.onnx
"""
from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .base.flags import Parser, path
from .checkpoints.find import run_to_load
from .load_run import load_run
from .mxnet_setup.compat import MXNET_MAJOR, gluon, graph_from_json, mx, np
from .networks.graph import semantics_of
from .onnx_model.writing import check_path, write_chapter, write_model
from .scratch import lenet


def to_onnx(net: Any, path: str | os.PathLike, *examples: Any, input_names: Sequence[str] = (),
            output_names: Sequence[str] = (), param_names: Sequence[str] = (),
            batch_axis: int | Sequence[int | None] = 0, log: Callable[[str], None] = print) -> None:
    """Write a network as an ONNX model for batches of any size; blocks. Needs onnx.

    Before the file is written, onnxruntime, if installed, computes the examples and random inputs with another batch
    size. If a result differs from the network's by more than 1e-5 of the largest number in that output, or if an
    operator cannot be converted, nothing is written, and ValueError says why.

    Parameters
    ----------
    net : gluon.HybridBlock, function or list
        An initialized network, possibly hybridized, a ``SymbolBlock``, or a function that `hybridized` accepts. Without
        `examples`: a network for images (n, 1, 28, 28), or LeNet's parameters from `scratch.get_params`, possibly a
        list of these for each device. If devices differ, as running statistics do, the first one counts.
    path : str or path-like
        Ends in ``.onnx``; an existing file is replaced when the new one is complete.
    examples : arrays and lists of arrays
        Arguments of `net` with realistic values, for example valid indices of words: random inputs are in the same
        range. Lists in the arguments of a function are its parameters. Networks of ``mx.nd`` need arrays of ``mx.nd``.
    input_names, output_names, param_names : sequence of str, optional
        Names in the model. By default, parameters keep their names in the network, such as ``'3.0.conv1.weight'``.
        `param_names` are for the lists of a function.
    batch_axis : int or sequence, optional
        The axis whose size stays free: of all inputs, or one for each, None for an input without batch.
    log : callable, optional
        Gets a line with the path and the result of the comparison.
    """
    names = {'input_names': input_names, 'output_names': output_names, 'param_names': param_names}
    if examples:
        write_model(net, path, *examples, **names, batch_axis=batch_axis, log=log)
    else:
        write_chapter(net, path, lenet, log)


def main(argv: list | None = None) -> int:
    """Run ``python -m gluon_mgpu.export``; return the exit status."""
    parser = Parser('gluon_mgpu.export', 'Write a trained network as an ONNX model, for other programs.')
    parser.add_argument('run', type=path, metavar='RUN',
                        help='folder of a run, one of its checkpoints, or NAME-symbol.json of net.export')
    parser.add_argument('params', type=path, nargs='?', metavar='NAME-0000.params', help='the other file of net.export')
    parser.add_argument('--shape', type=_shape, action='append', default=[], metavar='SIZES',
                        help='of an example for the files of net.export, such as 1,3,224,224; once for each input')
    parser.add_argument('--out', type=path, metavar='MODEL.onnx', help="(default: model.onnx in the run's folder)")
    return parser.run(argv, _run)


def _shape(value: str) -> tuple[int, ...]:
    sizes = tuple(int(size) if size.isdigit() else 0 for size in value.split(','))
    if min(sizes) < 1:
        raise argparse.ArgumentTypeError(f'{value}: must be sizes such as 1,3,224,224')
    return sizes


def _run(args: argparse.Namespace) -> None:
    if args.params or args.shape:
        _export_files(args)
        return
    found, config = run_to_load(args.run)
    out = Path(args.out) if args.out else found.parent / 'model.onnx'
    check_path(out)
    # As many CPU contexts as the run had devices: each gets the running statistics of one device
    devices = [mx.cpu(i) for i in range(len(config['devices']))]
    to_onnx(load_run(found, config, devices), out)


def _export_files(args: argparse.Namespace) -> None:
    """Export the two files of ``net.export``."""
    if not args.params or not args.shape:
        raise ValueError(f'{args.run}: add NAME-0000.params and --shape, the sizes of an example')
    out = args.out or f"{args.run.removesuffix('.json').removesuffix('-symbol')}.onnx"
    check_path(out)
    try:
        graph, params = json.loads(Path(args.run).read_text()), mx.nd.load(args.params)
        graph['nodes'] = [_without_label(node) for node in graph['nodes']]
        names = graph_from_json(json.dumps(graph)).list_inputs()
        inputs = [name for name in names if not {f'arg:{name}', f'aux:{name}'} & params.keys()]
        make = np.zeros if 'is_np_shape' in graph.get('attrs', {}) or MXNET_MAJOR >= 2 else mx.nd.zeros
    except (AttributeError, KeyError, TypeError, ValueError, mx.MXNetError) as error:
        raise ValueError(f'{args.run} and {args.params}: must be the files of net.export, written by this or an older '
                         'version of MXNet') from error
    if len(inputs) != len(args.shape):
        raise ValueError(f"--shape: must be given once for each input of the network: {', '.join(inputs)}")
    examples = [make(shape) for shape in args.shape]
    with semantics_of(examples[0]), warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter('ignore')  # MXNet's about unknown dtypes
        (Path(folder) / 'net-symbol.json').write_text(json.dumps(graph))
        net = gluon.SymbolBlock.imports(f'{folder}/net-symbol.json', inputs, args.params, ignore_extra=True)
    try:
        to_onnx(net, out, *examples, input_names=inputs)
    except ValueError as error:
        if len(inputs) == 1:
            raise
        raise ValueError(f'{error}. --shape is given in the order {", ".join(inputs)}') from error


def _without_label(node: dict) -> dict:
    """Return an operator, if it is the loss at the end of an older network, as one that needs no label."""
    operator = {'LinearRegressionOutput': '_copy', 'MAERegressionOutput': '_copy', 'SVMOutput': '_copy',
                'LogisticRegressionOutput': 'sigmoid', 'SoftmaxOutput': 'softmax'}.get(node['op'])
    if not operator:
        return node
    settings = {**node.get('param', {}), **node.get('attr', {}), **node.get('attrs', {})}  # from old to new versions
    true = {name for name, value in settings.items() if value in ('True', 'true', '1')}
    if operator == 'softmax' and not true & {'multi_output', 'preserve_shape'}:
        return {**node, 'inputs': node['inputs'][:1] * 2}  # over all but the first axis, which only SoftmaxOutput can
    attrs = {'axis': '1' if 'multi_output' in true else '-1'} if operator == 'softmax' else {}
    return {'op': operator, 'name': node['name'], 'attrs': attrs, 'inputs': node['inputs'][:1]}


if __name__ == '__main__':
    sys.exit(main())

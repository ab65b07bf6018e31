"""Export of trained networks as ONNX models, for onnxruntime and other programs: docs/export.md."""
from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy

if __name__ == '__main__':
    sys.exit('run this program as a module: python -m gluon_mgpu export')

from ...base.flags import Parser, path
from ...base.text import print_text
from ...mxnet_setup.compat import mx
from ...networks.resnet import in_float32
from ...settings.chapters import chapter_of
from ..load_run import load_run, place_of, run_to_load
from .symbol_files import load_files
from .writing import check_path, write_model

DTYPES = 'float32', 'int32', 'int64', 'uint8'  # of examples


def to_onnx(net: Any, path: str | os.PathLike, *examples: Any, input_names: Sequence[str] = (),
            output_names: Sequence[str] = (), param_names: Sequence[str] = (),
            batch_axis: int | Sequence[int | None] = 0, log: Callable[[str], None] = print) -> None:
    """Write a network as an ONNX model for batches of any size; blocks. Needs onnx.

    Before the file is written, onnxruntime, if installed, computes the examples, random inputs with another batch size,
    and values such as 0. If a result differs from the network's by more than 1e-5 of the largest number in that output,
    or what the rounding of coordinates explains, or if an operator cannot be converted, nothing is written, and
    ValueError says why.

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
        Names in the model, by default those of the network, such as ``'3.0.conv1.weight'``; `param_names` for lists.
    batch_axis : int or sequence, optional
        The axis whose size stays free: of all inputs, or one for each, None for an input without batch.
    log : callable
        Gets a line with the path and the result of the comparison.
    """
    for name, value in (('input_names', input_names), ('output_names', output_names), ('param_names', param_names)):
        if isinstance(value, str):
            raise ValueError(f'{name} {value!r}: must be a list of names, such as [{value!r}]')
    if examples:
        write_model(net, path, *examples, input_names=input_names, output_names=output_names, param_names=param_names,
                    batch_axis=batch_axis, log=log)
    elif input_names or output_names or param_names or batch_axis:
        raise ValueError('names and batch_axis are for a network with examples: pass an example of each input')
    else:
        _write_chapter(net, path, log)


def _write_chapter(net: Any, path: Any, log: Callable[[str], None]) -> None:
    """Write the network of a chapter in float32; given one list of parameters per device, the first is used."""
    chapter, params = chapter_of(net), []
    if chapter.forward:
        params = [net[0] if net and isinstance(net[0], (list, tuple)) else net]
        net = getattr(chapter.module, chapter.forward)
    write_model(net if params else in_float32(net), path, numpy.zeros((1, 1, 28, 28), 'float32'), *params,
                input_names=['images'], output_names=['scores'], param_names=chapter.param_names, log=log)


def main(argv: list | None = None) -> int:
    """Run ``python -m gluon_mgpu export``; return the exit status."""
    parser = Parser('gluon_mgpu export', 'Write a trained network as an ONNX model, for other programs.')
    parser.add_argument('run', type=path, metavar='RUN',
                        help='folder of a run, one of its checkpoints, or NAME-symbol.json of net.export')
    parser.add_argument('params', type=path, nargs='?', metavar='NAME-0000.params', help='the other file of net.export')
    parser.add_argument('--out', type=path, metavar='MODEL.onnx', help="(default: model.onnx in the run's folder)")
    files = parser.add_argument_group('for the files of net.export')
    files.add_argument('--shape', type=_shape, action='append', default=[], metavar='SIZES',
                       help='of an example, such as 1,3,224,224 or 1,20,int32; once for each input')
    files.add_argument('--batch-axis', type=_axes, default=0, metavar='N',
                       help='axis whose size stays free; one for all inputs, or one for each, such as 1,0,none')
    files.add_argument('--output-names', type=lambda value: value.split(','), default=[], metavar='NAMES',
                       help='such as boxes,scores (default: those of the layers)')
    files.add_argument('--float32', action='store_true', help='convert float16 and float64 to float32')
    return parser.run(argv, _run)


def _shape(value: str) -> tuple[tuple[int, ...], str]:
    sizes = value.split(',')
    dtype = sizes.pop() if sizes[-1] in DTYPES else 'float32'
    shape = tuple(int(size) if size.isdecimal() else 0 for size in sizes)
    if min(shape, default=0) < 1:
        raise argparse.ArgumentTypeError(f'{value}: must be sizes such as 1,3,224,224 or 1,20,int32')
    return shape, dtype


def _axes(value: str) -> int | list[int | None]:
    axes: list[Any] = [None if axis == 'none' else int(axis) if axis.isdecimal() else -1 for axis in value.split(',')]
    if -1 in axes or {*axes} == {None}:
        raise argparse.ArgumentTypeError(f'{value}: must be an axis, from 0, or one for each input, such as 1,0,none')
    return axes if len(axes) > 1 else axes[0]


def _run(args: argparse.Namespace) -> None:
    if args.params and args.params.endswith('.onnx'):
        raise ValueError(f'{args.params}: name the model to write with --out {args.params}')
    if args.params or args.run.endswith(('.json', '.params')):
        _export_files(args)
        return
    if args.shape or args.batch_axis or args.output_names or args.float32:
        raise ValueError(f'{args.run}: --shape, --batch-axis, --output-names and --float32 are for two files of '
                         'net.export, NAME-symbol.json and NAME-0000.params')
    found, metadata = run_to_load(args.run)
    print_text(f'checkpoint: {found}, {place_of(metadata)}')
    out = args.out or found.with_name('model.onnx')
    check_path(out)
    # As many CPU contexts as the run had devices: each gets the running statistics of one device
    config = metadata['config']
    devices = [mx.cpu(i) for i in range(len(config['devices']))]
    to_onnx(load_run(found, config, devices), out, log=print_text)


def _export_files(args: argparse.Namespace) -> None:
    if not args.params:
        raise ValueError(f'{args.run}: give both files, NAME-symbol.json and NAME-0000.params, and --shape')
    name = os.path.basename(args.run).removesuffix('.json').removesuffix('-symbol')
    out = args.out or os.path.join(os.path.dirname(args.run), f'{name}.onnx')
    check_path(out)
    net, inputs, outputs, line = load_files(args.run, args.params, args.shape, args.float32)
    print_text(line)
    to_onnx(net, out, *inputs.values(), input_names=[*inputs], output_names=args.output_names or outputs,
            batch_axis=args.batch_axis, log=print_text)

"""Export of trained networks as ONNX models, for onnxruntime and other programs: docs/export.md."""
from __future__ import annotations

import argparse
import sys
from pathlib import Path

if __name__ == '__main__':
    sys.exit('run this program as a module: python -m gluon_mgpu export')

from ...base.flags import Parser, path
from ...base.text import print_text
from ...mxnet_setup.compat import mx
from ..load_run import load_run, place_of_checkpoint, run_to_load
from .symbol_files import load_files
from .writing import to_onnx

DTYPES = 'float32', 'int32', 'int64', 'uint8'  # of examples


def main(argv: list | None = None) -> int:
    """Run ``python -m gluon_mgpu export``; return the exit status."""
    parser = Parser('gluon_mgpu export', 'Write a trained network as an ONNX model, for other programs.')
    parser.add_argument('run', type=path, metavar='RUN',
                        help='folder of a run, one of its checkpoints, or NAME-symbol.json of net.export')
    parser.add_argument('params', type=path, nargs='?', metavar='NAME-0000.params', help='the other file of net.export')
    parser.add_argument('--out', type=path, metavar='MODEL.onnx', help="(default: model.onnx in the run's folder)")
    files = parser.add_argument_group('for the files of net.export')
    files.add_argument('--shape', type=shape, action='append', default=[], metavar='SIZES',
                       help='of an example, such as 1,3,224,224 or 1,20,int32; once for each input')
    files.add_argument('--batch-axis', type=batch_axis, default=0, metavar='N',
                       help='axis whose size stays free; one for all inputs, or one for each, such as 1,0,none')
    files.add_argument('--output-names', type=lambda value: value.split(','), default=[], metavar='NAMES',
                       help='such as boxes,scores (default: those of the layers)')
    files.add_argument('--float32', action='store_true', help='convert float16 and float64 to float32')
    return parser.run(argv, _run)


def shape(value: str) -> tuple[tuple[int, ...], str]:
    """Return the shape and the dtype of an example, for argparse."""
    sizes = value.split(',')
    dtype = sizes.pop() if sizes[-1] in DTYPES else 'float32'
    return tuple(map(int, sizes)), dtype


def batch_axis(value: str) -> int | list[int | None] | None:
    """Return the axis of all inputs, or of each, for argparse."""
    axes = [None if axis == 'none' else int(axis) for axis in value.split(',')]
    return axes if len(axes) > 1 else axes[0]


def _run(args: argparse.Namespace) -> None:
    if args.params or args.run.endswith(('.json', '.params')):
        _export_files(args)
        return
    if args.shape or args.batch_axis or args.output_names or args.float32:
        raise ValueError(f'{args.run}: --shape, --batch-axis, --output-names and --float32 are for two files of '
                         'net.export, NAME-symbol.json and NAME-0000.params')
    found, metadata = run_to_load(args.run)
    print_text(f'checkpoint: {found}, {place_of_checkpoint(metadata)}')
    # As many CPU contexts as the run had devices: each gets the running statistics of one device
    config = metadata['config']
    devices = [mx.cpu(i) for i in range(len(config['devices']))]
    to_onnx(load_run(found, config, devices), args.out or Path(found).with_name('model.onnx'), log=print_text)


def _export_files(args: argparse.Namespace) -> None:
    if not args.params or args.params.endswith('.onnx'):
        raise ValueError(f'{args.run}: give both files, NAME-symbol.json and NAME-0000.params, and --shape; name the '
                         'model with --out')
    name = Path(args.run).name.removesuffix('.json').removesuffix('-symbol')
    net, inputs, outputs, line = load_files(args.run, args.params, args.shape, args.float32)
    print_text(line)
    to_onnx(net, args.out or Path(args.run).with_name(f'{name}.onnx'), *inputs.values(), input_names=[*inputs],
            output_names=args.output_names or outputs, batch_axis=args.batch_axis, log=print_text)

"""Export of trained networks as ONNX models, for onnxruntime and other programs.

    python -m gluon_mgpu.export runs/ONE                      # runs/ONE/model.onnx
    python -m gluon_mgpu.export runs/ONE --out lenet.onnx
    python -m gluon_mgpu.scratch --export lenet.onnx          # at the end of training
"""
from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .base.flags import Parser, path
from .checkpoints.find import run_to_load
from .load_run import load_run
from .mxnet_setup.compat import mx
from .onnx_model import file
from .scratch import lenet


def to_onnx(net_or_params: Any, path: str | os.PathLike, log: Callable[[str], None] = print) -> None:
    """Write LeNet or ResNet-18 as an ONNX model for batches of any size; blocks. Needs onnx.

    The model maps ``images`` (batch, 1, 28, 28), float32 in [0, 1], to ``scores`` (batch, 10), as the network does in
    prediction. If onnxruntime is installed, its scores for random images are compared with MXNet's, to 1e-5 of the
    largest score, before the file is written.

    `net_or_params` is ``resnet18(num_classes)`` of any dtype, possibly hybridized, or a list of LeNet's parameters from
    `scratch.get_params`, possibly a list of these for each device. If devices differ, as batch norm's running
    statistics do, the first one counts. `path` ends in ``.onnx``; an existing file is replaced when the new one is
    complete.
    """
    file.write(net_or_params, path, lenet, log)


def main(argv: list | None = None) -> int:
    """Run ``python -m gluon_mgpu.export``; return the exit status."""
    parser = Parser('gluon_mgpu.export', 'Write the network of a run as an ONNX model, for other programs.')
    parser.add_argument('run', type=path, metavar='RUN', help='folder of a run, or one of its checkpoints')
    parser.add_argument('--out', type=path, metavar='MODEL.onnx', help="(default: model.onnx in the run's folder)")
    return parser.run(argv, _run)


def _run(args: argparse.Namespace) -> None:
    found, config = run_to_load(args.run)
    out = Path(args.out) if args.out else found.parent / 'model.onnx'
    file.check_path(out)
    # As many CPU contexts as the run had devices: each gets the running statistics of one device
    devices = [mx.cpu(i) for i in range(len(config['devices']))]
    to_onnx(load_run(found, config, devices), out)


if __name__ == '__main__':
    sys.exit(main())

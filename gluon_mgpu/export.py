"""A way out: a trained network as an ONNX model, which onnxruntime and many other programs run.

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

from .base.program import Parser, exit_status, text
from .load_run import find_run, load_run
from .mxnet_setup.compat import mx
from .onnx_model import file
from .scratch import lenet


def to_onnx(net_or_params: Any, path: str | os.PathLike, log: Callable[[str], None] = print) -> None:
    """Write LeNet or ResNet-18 as an ONNX model, for batches of any size, in float32; waits.

    The model takes ``images`` (batch, 1, 28, 28), float32 from 0 to 1, and gives ``scores`` (batch, 10), as the network
    does when it predicts. Needs onnx. If onnxruntime is installed, the scores of the model there are compared with
    those of MXNet, on random images, before the file is written: to 1e-5 of the largest score.

    Parameters
    ----------
    net_or_params : gluon.Block, what `hybridized` makes of one, a list of np.ndarray, or a list of such lists
        ``resnet18(num_classes)``, on any devices and in any precision: its parameters are float32 in each. Or LeNet's
        parameters, as `scratch.get_params` returns them, or a list of those on each device. Where devices differ, as
        they do in batch norm's running statistics, the model is what the first device computes.
    path : path-like
        Ends in ``.onnx``. What it was before is left until the new file is complete.
    log : callable
        Is told in one line where the model is, and how it was checked, or that it was not.

    Raises
    ------
    ValueError
        If it is another network, onnx is not installed, `path` cannot be a model, or the scores differ. Nothing is
        written then.
    OSError
        If the file cannot be written.
    """
    file.write(net_or_params, path, lenet, log)


def main(argv: list | None = None) -> int:
    """The command line: ``python -m gluon_mgpu.export --help``. Returns the exit status."""
    parser = Parser(prog='python -m gluon_mgpu.export',
                    description='Write what a run has trained as an ONNX model, which other programs run.')
    parser.add_argument('run', metavar='RUN', help="a run's folder, or one of its checkpoints")
    parser.add_argument('--out', type=text, metavar='MODEL.onnx', help="(default: model.onnx in the run's folder)")
    args = parser.parse_args(argv)
    return exit_status('export', lambda: _run(args))


def _run(args: argparse.Namespace) -> None:
    run = Path(args.run)
    out = Path(args.out) if args.out else (run if run.is_dir() else run.parent) / 'model.onnx'
    file.check_path(out)
    found, config = find_run(run)
    # As many CPU contexts as the run had devices, of whatever kind: each gets the running statistics of one of them
    devices = [mx.cpu(i) for i in range(len(config['devices']))]
    to_onnx(load_run(found, config, devices), out)


if __name__ == '__main__':
    sys.exit(main())

"""Pictures from recorded numbers. Matplotlib is loaded when the first one is drawn.

    python -m gluon_mgpu.plot runs/ONE runs/TWO --out accuracy.png     # several runs in one picture
"""
from __future__ import annotations

import csv
import io
import json
import sys
from itertools import cycle
from pathlib import Path
from typing import Any

from .base.files import SameFolder
from .base.program import Parser, exit_status, picture
from .training.run import Callback, Run


class Animator:
    """A curve that grows while a program computes.

    In a notebook the figure is drawn anew at each `add`; elsewhere the points are only kept.

    Source: D2L 23.7, ``Animator``.

    Parameters
    ----------
    xlabel, ylabel : str, optional
        What the axes show.
    legend : list of str, optional
        The names of the lines.
    xlim, ylim : (float, float), optional
        The ends of the axes.
    xscale, yscale : str
        'linear' or 'log'.
    fmts : sequence of str
        Matplotlib's short form of colour and style, one for each line; with more lines they repeat.
    nrows, ncols : int
        As in the book; the lines are drawn in the first of these axes.
    figsize : (float, float)
        Inches.

    Attributes
    ----------
    X, Y : list of lists of float
        The points: X[i] and Y[i], of equal length, are those of line i.
    """

    def __init__(self, xlabel=None, ylabel=None, legend=None, xlim=None, ylim=None, xscale='linear',
                 yscale='linear', fmts=('-', 'm--', 'g-.', 'r:'), nrows=1, ncols=1, figsize=(3.5, 2.5)):
        self.axes_settings = {'xlabel': xlabel, 'ylabel': ylabel, 'xlim': xlim, 'ylim': ylim,
                              'xscale': xscale, 'yscale': yscale}
        self.legend, self.fmts = legend, fmts
        self.subplots = {'nrows': nrows, 'ncols': ncols, 'figsize': figsize}
        self.X: list[list[float]] = []
        self.Y: list[list[float]] = []
        self.fig: Any = None
        self._shown: Any = None  # in a notebook, the output that holds the figure

    def add(self, x, y) -> None:
        """Add a point to each line.

        Parameters
        ----------
        x : float or sequence of float
            One for all lines, or one per line.
        y : float or sequence of float or None
            One per line; None adds no point to that line.
        """
        y = list(y) if hasattr(y, '__len__') else [y]
        x = list(x) if hasattr(x, '__len__') else [x] * len(y)
        while len(self.X) < len(y):
            self.X.append([])
            self.Y.append([])
        for i, (a, b) in enumerate(zip(x, y)):
            if a is not None and b is not None:
                self.X[i].append(a)
                self.Y[i].append(b)
        if _in_notebook():
            self.draw()

    def draw(self) -> None:
        """Draw the lines as they are now, and show them if this is a notebook."""
        from matplotlib.figure import Figure
        if self.fig is None:
            # Not through pyplot, which would show the figure a second time when the cell ends
            self.fig = Figure(figsize=self.subplots['figsize'], layout='tight')
            self.axes = self.fig.subplots(self.subplots['nrows'], self.subplots['ncols'], squeeze=False).flatten()
        axes = self.axes[0]
        axes.cla()
        for x, y, fmt in zip(self.X, self.Y, cycle(self.fmts)):
            axes.plot(x, y, fmt)
        axes.set(**{name: _with_width(value) if name in ('xlim', 'ylim') else value
                    for name, value in self.axes_settings.items() if value is not None})
        if self.legend:
            axes.legend(self.legend)
        axes.grid()
        if _in_notebook():
            from IPython import display
            # As PNG: without pyplot, IPython knows no picture of a Figure. Updated in place, and not cleared:
            # a pending clear_output would take the last curve away as soon as the cell prints something.
            png = io.BytesIO()
            self.fig.savefig(png, format='png')
            image = display.Image(png.getvalue())
            if self._shown is None:
                self._shown = display.display(image, display_id=True)
            else:
                self._shown.update(image)


def _with_width(limits: tuple) -> tuple:
    """Return the ends of an axis, apart from each other: those of a run of one epoch are equal."""
    low, high = limits
    return (low - 0.5, high + 0.5) if low == high else (low, high)


class AccuracyCurve(Callback):
    """Draws the curve of a run when it ends, if there is one: see `accuracy_curve`."""

    def __init__(self, path, title: str):
        self.path, self.title = path, title
        self._same_folder = SameFolder(Path(path).parent)

    def train_end(self, run: Run) -> None:
        """Draw the epochs that there are, and say so."""
        if not run.history:
            return
        try:
            self._same_folder.check()
            accuracy_curve(run.history, self.path, self.title)
            run.print(f'curve: {self.path}')
        except OSError as error:  # a full disk must not hide how the run ended
            run.warn(f'{self.path} cannot be written ({error.strerror})')


def accuracy_curve(history: list, path, title: str) -> None:
    """Draw test accuracy and training loss over the epochs, as PNG.

    Parameters
    ----------
    history : list of training.run.Epoch
        At least one.
    path : path-like
        The file to write.
    title : str
        What was trained, on which data and devices.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator
    epochs = [e.epoch for e in history]
    fig = Figure(figsize=(6.4, 4.8), dpi=120, layout='tight')
    axes, loss_axes = fig.subplots(2, 1, sharex=True, gridspec_kw={'height_ratios': (3, 2)})
    axes.plot(epochs, [e.test_acc for e in history], 'o-', color='tab:blue')
    axes.annotate(f'{history[-1].test_acc:.3f}', (epochs[-1], history[-1].test_acc), xytext=(0, -14),
                  textcoords='offset points', ha='center', color='tab:blue')
    axes.set(title=title, ylabel='test accuracy (share)', ylim=(0, 1), xlim=(0.5, epochs[-1] + 0.5))
    loss_axes.plot(epochs, [e.loss for e in history], 'o-', color='tab:orange')
    loss_axes.set(xlabel='epoch', ylabel='training loss (nats)')
    loss_axes.set_ylim(bottom=0)
    loss_axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    for a in (axes, loss_axes):
        a.grid(alpha=0.4)
    fig.savefig(path)


def compare_runs(folders: list, path) -> None:
    """Draw the test accuracy of several runs over the epochs, as PNG.

    Parameters
    ----------
    folders : list of path-like
        Output folders of `gluon_mgpu.scratch` or `gluon_mgpu.concise`.
    path : path-like
        The file to write.

    Raises
    ------
    ValueError
        If one of them is no such folder.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator
    fig = Figure(figsize=(6.4, 3.6), dpi=120, layout='tight')
    axes = fig.subplots()
    datasets = set()
    for folder in folders:
        config, history = _read_run(Path(folder))
        datasets.add(config['dataset'])
        seconds = sum(e['seconds'] for e in history) / len(history)
        axes.plot([e['epoch'] for e in history], [e['test_acc'] for e in history], 'o-', alpha=0.8,
                  label=f'{config["chapter"]}, {config["devices"]}: {seconds:.1f} s per epoch')
    axes.set(title=f'Test accuracy on {", ".join(sorted(datasets))}', xlabel='epoch',
             ylabel='test accuracy (share)', ylim=(0, 1))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.4)
    axes.legend(loc='lower right')
    fig.savefig(path)


def _read_run(folder: Path) -> tuple[dict, list]:
    try:
        config = json.loads((folder / 'config.json').read_text())
        with open(folder / 'history.csv', newline='') as file:
            history = [{'epoch': int(line['epoch']), 'seconds': float(line['seconds']),
                        'test_acc': float(line['test_acc'])} for line in csv.DictReader(file)]
        if not history:
            raise ValueError('history.csv has no epochs')
        return {'chapter': config['chapter'], 'dataset': str(config['dataset']),
                'devices': ', '.join(config['devices'])}, history
    except KeyError as missing:
        problem = f'{missing} is missing'
    except (OSError, ValueError, TypeError, RecursionError, csv.Error) as error:
        problem = str(error)
    raise ValueError(f'{folder} is not the folder of a run ({problem}): it must hold config.json and history.csv; name '
                     'one that --out-dir made')


def main(argv: list | None = None) -> int:
    """The command line: ``python -m gluon_mgpu.plot --help``. Returns the exit status."""
    parser = Parser(prog='python -m gluon_mgpu.plot',
                    description='Draw the test accuracy of several runs in one picture.')
    parser.add_argument('folders', nargs='+', metavar='RUN', help='a folder that a run has left')
    parser.add_argument('--out', type=picture, default='accuracy.png', metavar='PNG', help='(default: %(default)s)')
    args = parser.parse_args(argv)

    def draw():
        compare_runs(args.folders, args.out)
        print(args.out)

    return exit_status('plot', draw)


def _in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython: Any = sys.modules.get('IPython')
    shell = ipython and ipython.get_ipython()
    return bool(shell) and 'IPKernelApp' in shell.config


if __name__ == '__main__':
    sys.exit(main())

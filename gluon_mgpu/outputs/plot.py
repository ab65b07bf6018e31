"""Plots of accuracy and loss. Matplotlib is imported when the first one is drawn."""
import argparse
import io
import json
import sys
from functools import cached_property
from itertools import cycle
from pathlib import Path
from statistics import mean
from typing import Any

from ..base.files import read_file
from ..base.flags import Parser, path, picture
from ..base.pictures import in_lines, matplotlib_defaults, write_picture
from ..base.program import reason
from ..base.text import or_none, print_text
from ..checkpoints.metadata import check_config
from ..training.history import read_history
from ..training.run import Callback, Run

NAMED = (  # settings that name a run in a comparison, where they differ
    'dataset', 'batch_size', 'lr', 'lr_schedule', 'warmup_epochs', 'optimizer', 'momentum', 'weight_decay', 'clip_norm',
    'dtype', 'sync_batch_norm', 'train_size', 'validation_size', 'seed', 'accumulate', 'allreduce')


class Animator:
    """Curve that grows during training; in a notebook, it is redrawn at each `add`. Line i has points X[i] and Y[i].

    Source: D2L 23.7, ``Animator``, with the same arguments. All lines are drawn in the first of the axes.
    """

    def __init__(self, xlabel=None, ylabel=None, legend=None, xlim=None, ylim=None, xscale='linear',
                 yscale='linear', fmts=('-', 'm--', 'g-.', 'r:'), nrows=1, ncols=1, figsize=(3.5, 2.5)):
        self.axes_settings = {'xlabel': xlabel, 'ylabel': ylabel, 'xlim': xlim, 'ylim': ylim, 'xscale': xscale,
                              'yscale': yscale}
        self.legend, self.fmts, self.figsize, self.shape = legend, fmts, figsize, (nrows, ncols)
        self.X: list[list[float]] = []
        self.Y: list[list[float]] = []
        self._shown: Any = None  # in a notebook: the output that contains the figure

    def add(self, x, y) -> None:
        """Add a point to each line: one number `x` for all or one per line, and one `y` per line, None for no point."""
        ys = y if hasattr(y, '__len__') else [y]
        xs = x if hasattr(x, '__len__') else [x] * len(ys)
        for lines in (self.X, self.Y):
            lines += [[] for _ in ys[len(lines):]]
        for x, y, X, Y in zip(xs, ys, self.X, self.Y):
            if x is not None and y is not None:
                X.append(x)
                Y.append(y)
        if _in_notebook():
            self.draw()

    @cached_property
    def axes(self) -> Any:
        """The axes of the figure, in a flat array; the lines are in the first."""
        from matplotlib.figure import Figure  # not pyplot, which would show the figure again at the end of the cell
        return Figure(figsize=self.figsize, layout='tight').subplots(*self.shape, squeeze=False).flatten()

    fig = property(lambda self: self.axes[0].figure, doc='The figure.')

    def draw(self) -> None:
        """Draw the lines; in a notebook, show them."""
        from matplotlib.ticker import MaxNLocator
        axes = self.axes[0]
        axes.cla()
        for x, y, fmt in zip(self.X, self.Y, cycle(self.fmts)):
            axes.plot(x, y, fmt)
        axes.set(**self.axes_settings)
        if self.axes_settings['xscale'] == 'linear':
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))  # no step 2.5
        if self.legend:
            axes.legend(self.legend)
        axes.grid()
        if _in_notebook():
            from IPython import display
            png = io.BytesIO()
            self.fig.savefig(png, format='png')  # IPython cannot show a Figure without pyplot
            image = display.Image(png.getvalue())
            # Update it; a pending clear_output would remove the last curve when the cell prints something
            if self._shown is None:
                self._shown = display.display(image, display_id=True)
            else:
                self._shown.update(image)


class AccuracyCurve(Callback):
    """Callback that draws `accuracy_curve` when a run ends, unless it has no epochs."""

    def __init__(self, path, title: str):
        self.path, self.title = Path(path), title

    def train_end(self, run: Run) -> None:
        if not run.history:
            return
        try:
            accuracy_curve(run.history, self.path, self.title, run.evaluated)
            run.print(f'curve: {self.path}')
        except Exception as error:  # such as a full disk or a missing LaTeX; it must not hide how the run ended
            run.warn(f'{self.path} cannot be written ({reason(error)})')


@matplotlib_defaults()
def accuracy_curve(history: list, path, title: str, evaluated: str = 'test') -> None:
    """Draw accuracy and training loss over the epochs, a list of at least one `EpochResult`; write the picture."""
    epochs = [e.epoch for e in history]
    fig, (axes, loss_axes) = figure((6.4, 4.8), nrows=2, sharex=True, gridspec_kw={'height_ratios': (3, 2)})
    axes.plot(epochs, [e.accuracy for e in history], 'o-', color='tab:blue')
    last = history[-1].accuracy
    axes.annotate(f'{last:.3f}', (epochs[-1], last), xytext=(0, -14 if last > 0.2 else 8), textcoords='offset points',
                  ha='center', color='tab:blue')
    axes.set(title=in_lines(title), ylabel=f'{evaluated} accuracy (share)', ylim=(0, 1), xlim=(0.5, epochs[-1] + 0.5))
    loss_axes.plot(epochs, [e.loss for e in history], 'o-', color='tab:orange')
    loss_axes.set(xlabel='epoch', ylabel='training loss (nats)')
    loss_axes.set_ylim(bottom=0)
    write_picture(fig, path)


@matplotlib_defaults()
def compare_runs(folders: list, path) -> None:
    """Draw the accuracy of several runs over the epochs; raise ValueError if a folder is not that of a run."""
    configs, histories, evaluated = zip(*(_read_run(Path(folder)) for folder in folders))
    labels = [in_lines(f'{label}: {mean(e.seconds for e in history):.1f} s per epoch', 70)
              for label, history in zip(_labels(folders, configs), histories, strict=True)]
    fig, (axes,) = figure((6.4, 3.6 + 0.2 * len('\n'.join(labels).splitlines())))
    for i, (label, history) in enumerate(zip(labels, histories, strict=True)):
        size = 1.5 + 4 * (1 - (i + 1) / len(folders))  # later curves are thinner, so that they do not hide equal ones
        axes.plot([e.epoch for e in history], [e.accuracy for e in history], 'o-', linewidth=size, markersize=3 * size,
                  label=label)
    datasets = ', '.join(sorted({config.get('dataset', 'other data') for config in configs}))
    axes.set(title=in_lines(f'Accuracy on {datasets}'), xlabel='epoch',
             ylabel=f'{" or ".join(sorted({*evaluated}))} accuracy (share)', ylim=(0, 1))
    axes.legend(loc='upper center', bbox_to_anchor=(0.5, 0), borderaxespad=4)  # below the axes; labels can be long
    write_picture(fig, path)


def _labels(folders: list, configs: tuple) -> list[str]:
    """Name each run by its chapter, its devices and what differs, and by its folder if these are those of another.

    A run of a loop of one's own has no configuration, and is named by its folder.
    """
    differing = [name for name in NAMED if len({str(config.get(name)) for config in configs if config}) > 1]
    labels = [', '.join([config['chapter'], *config['devices'],
                          *(f'{name} {or_none(config.get(name))}' for name in differing)])
              if config else str(folder) for folder, config in zip(folders, configs)]
    return [f'{label} in {folder}' if labels.count(label) > 1 else label for label, folder in zip(labels, folders)]


def figure(size: tuple, **subplots) -> tuple:
    """Return a figure and its axes, with grids and whole numbers on the x axis."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator
    fig = Figure(figsize=size, dpi=120, layout='tight')
    all_axes = fig.subplots(**subplots, squeeze=False).flatten()
    for axes in all_axes:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.grid(alpha=0.4)
    return fig, all_axes


def _read_run(folder: Path) -> tuple[dict, list, str]:
    """Return the configuration of a run, empty for one of a loop of one's own, its history and what was evaluated."""
    try:
        config, (history, evaluated) = {}, read_history(folder / 'history.csv')
        if (folder / 'config.json').exists():
            config = json.loads(read_file(folder / 'config.json'))
            check_config(config)
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f'{folder}: not the folder of a run, its config.json or history.csv cannot be read '
                         f'({reason(error)})') from None
    if not history:
        raise ValueError(f'{folder}: no epoch of this run has ended: resume it, or leave it out')
    return config, history, evaluated


def main(argv: list | None = None) -> int:
    """Run the command line ``python -m gluon_mgpu plot``; return the exit status."""
    parser = Parser('gluon_mgpu plot', 'Draw the accuracy of several runs in one plot.')
    parser.add_argument('folders', type=path, nargs='+', metavar='RUN', help='folder of a run')
    parser.add_argument('--out', type=picture, metavar='FILE', default='accuracy.png', help='(default: %(default)s)')
    return parser.run(argv, _run)


def _run(args: argparse.Namespace) -> None:
    compare_runs(args.folders, args.out)
    print_text(f'picture: {args.out}')


def _in_notebook() -> bool:
    ipython: Any = sys.modules.get('IPython')
    shell = ipython and ipython.get_ipython()
    return bool(shell) and 'IPKernelApp' in shell.config

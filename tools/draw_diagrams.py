"""Draw the two diagrams of the documentation with Matplotlib.

    python tools/draw_diagrams.py            # writes docs/data-parallel.png and docs/partitions.png

The background is transparent and all text stands in light boxes, so that the pictures fit light and dark pages.
"""
import sys
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

DOCS = Path(__file__).resolve().parents[1] / 'docs'
BLUE, ORANGE, GREEN, PURPLE, GRAY = '#cfe2f7', '#fbdcb8', '#cdebcf', '#e5d5f5', '#eceff2'
LINE = '#7d8590'  # arrows and borders: visible on white and on black
STEP = 0.68  # inches from one layer to the next


def canvas(width: float, height: float) -> tuple:
    """Return a figure and axes without frame, in inches from the lower left corner."""
    fig = Figure(figsize=(width, height), dpi=120)
    axes = fig.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(0, height))
    axes.axis('off')
    return fig, axes


def box(axes, x: float, y: float, width: float, height: float, text: str = '', color: str = GRAY, size: float = 9,
        bold: bool = False) -> None:
    """Draw a rounded box with its lower left corner at (x, y) and text in the middle."""
    axes.add_patch(FancyBboxPatch((x, y), width, height, boxstyle='round,pad=0,rounding_size=0.06', facecolor=color,
                                  edgecolor=LINE, linewidth=1))
    axes.text(x + width / 2, y + height / 2, text, ha='center', va='center', fontsize=size, color='#1f2328',
              fontweight='bold' if bold else 'normal', linespacing=1.35)


def arrow(axes, start: tuple, end: tuple, style: str = '-|>') -> None:
    """Draw an arrow."""
    axes.add_patch(FancyArrowPatch(start, end, arrowstyle=style, mutation_scale=11, color=LINE, linewidth=1.6,
                                   shrinkA=1, shrinkB=1))


def data_parallel() -> Figure:
    """Return the diagram of one training step on k devices, narrow enough for a phone."""
    fig, axes = canvas(5, 5.35)
    width, end = 1.35, 4.95
    box(axes, 0.05, 4.95, end - 0.05, 0.35, 'batch: n rows of X and y', size=10)
    box(axes, 0.05, 1.55, end - 0.05, 0.35, '2. allreduce: sum of the gradients, to every device', PURPLE, 10)
    box(axes, 0.05, 0.05, end - 0.05, 0.35, 'equal parameters on all devices: next batch', size=10)
    for x, name, rows, color in ((0.05, 'device 0', 'rows 0\nto n/k - 1', BLUE),
                                 (1.7, 'device 1', 'the next\nn/k rows', ORANGE),
                                 (end - width, 'device k - 1', 'the last\nn/k rows', GREEN)):
        for y, height, text in ((4.4, 0.32, name), (3.82, 0.5, rows), (3.24, 0.5, 'all\nparameters'),
                                (2.13, 0.75, '1. gradient:\nforward, loss,\nbackward'),
                                (0.63, 0.7, '3. update:\nparameters\n- lr / n * sum')):
            box(axes, x, y, width, height, text, color, 10, bold=text == name)
        for start, stop in ((4.95, 4.72), (3.24, 2.88), (2.13, 1.9), (1.55, 1.33), (0.63, 0.4)):
            arrow(axes, (x + width / 2, start), (x + width / 2, stop))
    for y in (4.56, 3.78, 2.5, 0.98):  # the devices between the second and the last
        for i in range(3):
            axes.plot(3.225 + 0.1 * i, y, 'o', color=LINE, markersize=3)
    return fig


def network(axes, x: float, y: float, width: float, layers: list) -> None:
    """Draw layers above each other, each as one box per color."""
    for i, colors in enumerate(layers):
        part = (width + 0.08) / len(colors)
        for side, color in enumerate(colors):
            text = f'layer {i + 1}' if len(colors) == 1 else f'half\nof {i + 1}'
            box(axes, x + side * part, y + STEP * i, part - 0.08, 0.4, text, color)


def partitions() -> Figure:
    """Return the diagram of the three ways to use two devices, narrow enough for a phone."""
    fig, axes = canvas(5.2, 5.5)
    low, width = 1.65, 1.6  # height of the first layer; width of a column
    for x, title, moved in (
            (0.05, 'network\npartitioning\nby layers', 'activations,\nwhere layers are\ncut; the devices\ntake turns'),
            (1.8, 'layer-wise\npartitioning\nby channels', 'activations,\nafter each layer;\nthe devices\noften wait'),
            (3.55, 'data\nparallelism\nby rows', 'gradients,\nonce per step,\nas many for any\nbatch size')):
        box(axes, x, 4.75, width, 0.7, title, bold=True)
        box(axes, x, 0.05, width, 0.95, 'moves ' + moved)
    for x, text, color in ((1.6, 'device 0', BLUE), (2.68, 'device 1', ORANGE)):
        box(axes, x, 4.32, 1.0, 0.28, text, color)
    network(axes, 0.35, low, 1.0, [(BLUE,), (BLUE,), (ORANGE,), (ORANGE,)])
    network(axes, 1.8, low, width, [(BLUE, ORANGE)] * 4)
    network(axes, 3.55, low, 0.66, [(BLUE,)] * 4)
    network(axes, 4.49, low, 0.66, [(ORANGE,)] * 4)
    for i in range(3):
        below, above = low + STEP * i + 0.4, low + STEP * (i + 1)
        for x in (0.85, 3.88, 4.82):
            arrow(axes, (x, below), (x, above))
        for start, ends in ((2.18, (2.08, 2.9)), (3.02, (2.3, 3.12))):
            for end in ends:
                arrow(axes, (start, below), (end, above))
    for i in range(4):
        arrow(axes, (4.21, low + STEP * i + 0.2), (4.49, low + STEP * i + 0.2), '<|-|>')
    for x, part, text, color in ((0.35, 1.0, 'all rows', GRAY), (1.8, width, 'all rows', GRAY),
                                 (3.55, 0.76, 'half the\nrows', BLUE), (4.39, 0.76, 'the other\nhalf', ORANGE)):
        box(axes, x, 1.12, part, 0.4, text, color)
    return fig


def main(folder: Path = DOCS) -> None:
    """Write both pictures into a folder."""
    for name, draw in (('data-parallel', data_parallel), ('partitions', partitions)):
        draw().savefig(folder / f'{name}.png', transparent=True, metadata={'Software': None})


if __name__ == '__main__':
    main(*map(Path, sys.argv[1:]))

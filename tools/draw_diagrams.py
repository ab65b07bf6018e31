"""Draw the two diagrams of the documentation with Matplotlib.

    python tools/draw_diagrams.py            # writes docs/data-parallel.png and docs/partitions.png

The background is transparent and all text stands in light boxes, so that the pictures fit light and dark pages.
"""
from __future__ import annotations

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
    fig = Figure(figsize=(width, height), dpi=150)
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
    """Return the diagram of one training step on k devices."""
    fig, axes = canvas(9, 4.5)
    lanes = [(2.97, 'device 0', 'rows 0 to n/k - 1', BLUE), (1.93, 'device 1', 'the next n/k rows', ORANGE),
             (0.7, 'device k - 1', 'the last n/k rows', GREEN)]
    height = 0.88
    bottom, top = lanes[-1][0], lanes[0][0] + height
    for x, width, text in ((0.1, 0.95, 'batch'), (1.4, 2.1, 'each device has'), (3.85, 1.35, '1. gradient'),
                           (5.55, 1.25, '2. allreduce'), (7.15, 1.75, '3. update')):
        box(axes, x, 4.12, width, 0.3, text, bold=True)
    box(axes, 0.1, bottom, 0.95, top - bottom, 'n rows\nof X and y')
    box(axes, 5.55, bottom, 1.25, top - bottom, 'sum of the\ngradients,\nto every device', PURPLE)
    for y, name, rows, color in lanes:
        box(axes, 1.4, y + 0.45, 2.1, 0.43, f'{name}: {rows}', color, 8.5)
        box(axes, 1.4, y, 2.1, 0.43, f'{name}: all parameters', color, 8.5)
        box(axes, 3.85, y, 1.35, height, 'forward, loss,\nbackward:\nits gradient', color)
        box(axes, 7.15, y, 1.75, height, 'parameters\n- lr / n * sum', color)
        arrow(axes, (1.05, y + 0.66), (1.4, y + 0.66))
        for middle in (y + 0.66, y + 0.22):
            arrow(axes, (3.5, middle), (3.85, middle))
        arrow(axes, (5.2, y + height / 2), (5.55, y + height / 2))
        arrow(axes, (6.8, y + height / 2), (7.15, y + height / 2))
    for x in (2.45, 4.525, 8.025):  # the devices between the second and the last
        for i in range(3):
            axes.plot(x, 1.64 + 0.11 * i, 'o', color=LINE, markersize=3)
    box(axes, 1.4, 0.08, 7.5, 0.32, 'The parameters are equal on all devices again: next batch')
    arrow(axes, (8.025, bottom), (8.025, 0.4))
    arrow(axes, (2.45, 0.4), (2.45, bottom))
    return fig


def network(axes, x: float, y: float, width: float, layers: list) -> None:
    """Draw layers above each other, each as one box per color."""
    for i, colors in enumerate(layers):
        part = width / len(colors)
        for side, color in enumerate(colors):
            text = f'layer {i + 1}' if len(colors) == 1 else f'half of layer {i + 1}'
            box(axes, x + side * (part + 0.1), y + STEP * i, part, 0.36, text, color, 8)


def partitions() -> Figure:
    """Return the diagram of the three ways to use two devices: by layers, by channels, by rows."""
    fig, axes = canvas(9, 5)
    low = 1.15  # height of the first layer
    for x, title, moved in (
            (0.1, 'network partitioning\nby layers', 'activations, where layers are cut;\nthe devices take turns'),
            (3.1, 'layer-wise partitioning\nby channels', 'activations, after each layer;\nthe devices often wait'),
            (6.1, 'data parallelism\nby rows', 'gradients, once per step,\nas many for any batch size')):
        box(axes, x, 4.35, 2.8, 0.55, title, bold=True)
        box(axes, x, 0.08, 2.8, 0.5, 'moves ' + moved, size=8)
    for x, text, color in ((3.5, 'device 0', BLUE), (4.55, 'device 1', ORANGE)):
        box(axes, x, 3.93, 0.95, 0.26, text, color, 8)

    network(axes, 0.8, low, 1.4, [(BLUE,), (BLUE,), (ORANGE,), (ORANGE,)])
    network(axes, 3.1, low, 2.7, [(BLUE, ORANGE)] * 4)
    network(axes, 6.2, low, 1.0, [(BLUE,)] * 4)
    network(axes, 7.8, low, 1.0, [(ORANGE,)] * 4)
    for i in range(3):
        below, above = low + STEP * i + 0.36, low + STEP * (i + 1)
        for x in (1.5, 6.7, 8.3):
            arrow(axes, (x, below), (x, above))
        for start, ends in ((3.775, (3.6, 4.95)), (5.225, (4.05, 5.4))):
            for end in ends:
                arrow(axes, (start, below), (end, above))
    for i in range(4):
        arrow(axes, (7.2, low + STEP * i + 0.18), (7.8, low + STEP * i + 0.18), '<|-|>')
    for x, width, text, color in ((0.8, 1.4, 'all rows', GRAY), (3.1, 2.8, 'all rows', GRAY),
                                  (6.2, 1.0, 'half the rows', BLUE), (7.8, 1.0, 'the other half', ORANGE)):
        box(axes, x, 0.72, width, 0.26, text, color, 8)
    return fig


def main(folder: Path = DOCS) -> None:
    """Write both pictures into a folder."""
    for name, draw in (('data-parallel', data_parallel), ('partitions', partitions)):
        draw().savefig(folder / f'{name}.png', transparent=True, metadata={'Software': None})


if __name__ == '__main__':
    main(*map(Path, sys.argv[1:]))

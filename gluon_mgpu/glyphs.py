"""An embedded dataset: ten letters drawn from the fonts that matplotlib ships.

    train_images, train_labels, test_images, test_labels = glyphs.load(cache_dir)

For machines without network. Letters A to J, as in notMNIST, 28x28 grey pixels, 60,000 to train on and
10,000 to test on. Test letters come from typefaces that training never sees.
"""
from __future__ import annotations

import os
import tempfile
import zipfile
from pathlib import Path

import numpy

LETTERS = 'ABCDEFGHIJ'
TRAIN_FONTS = ('DejaVuSans', 'DejaVuSans-Bold', 'DejaVuSans-Oblique', 'DejaVuSans-BoldOblique',
               'DejaVuSansMono', 'DejaVuSansMono-Bold', 'DejaVuSansMono-Oblique', 'DejaVuSansMono-BoldOblique',
               'DejaVuSerif', 'DejaVuSerif-Bold', 'DejaVuSerif-Italic', 'DejaVuSerif-BoldItalic',
               'STIXGeneral', 'STIXGeneralBol', 'STIXGeneralItalic', 'STIXGeneralBolIta')
TEST_FONTS = ('cmr10', 'cmb10', 'cmss10', 'cmtt10', 'cmmi10')
NUM_TRAIN, NUM_TEST = 60_000, 10_000

FORMAT = 1          # to be raised whenever the same seed gives other images
SIZE = 28           # pixels along a side of an image
CELL = 112          # pixels along a side of a drawn letter: 4 for each of an image's
CAP_HEIGHT = 64     # pixels of a drawn capital's height: 16 of an image's 28


def draw_letters(fonts: tuple[str, ...]) -> numpy.ndarray:
    """Draws every letter in every font, large, upright and in the middle of its cell.

    Parameters
    ----------
    fonts : names of files in matplotlib's font folder, without ``.ttf``

    Returns
    -------
    ink : float32 (len(fonts), 10, 112, 112), 0 for paper to 1 for ink
    """
    import matplotlib
    import matplotlib.style
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.font_manager import FontProperties
    from matplotlib.patches import PathPatch
    from matplotlib.textpath import TextPath
    from matplotlib.transforms import Affine2D

    folder = Path(matplotlib.get_data_path()) / 'fonts' / 'ttf'
    width, height = len(LETTERS) * CELL, len(fonts) * CELL
    with matplotlib.style.context('default'):  # a user's own style must not change the images
        figure = Figure(figsize=(width / 100, height / 100), dpi=100)
        canvas = FigureCanvasAgg(figure)
        for row, font in enumerate(fonts):
            prop = FontProperties(fname=str(folder / f'{font}.ttf'))
            cap = TextPath((0, 0), 'H', size=100, prop=prop).get_extents().height
            for column, letter in enumerate(LETTERS):
                outline = TextPath((0, 0), letter, size=100, prop=prop)
                box = outline.get_extents()
                place = (Affine2D().translate(-(box.x0 + box.x1) / 2, -(box.y0 + box.y1) / 2)
                         .scale(CAP_HEIGHT / cap)
                         .translate((column + 0.5) * CELL, height - (row + 0.5) * CELL))
                figure.add_artist(PathPatch(outline, facecolor='black', linewidth=0, transform=place))
        canvas.draw()
        ink = 1 - numpy.asarray(canvas.buffer_rgba())[:, :, 0].astype(numpy.float32) / 255
    return ink.reshape(len(fonts), CELL, len(LETTERS), CELL).swapaxes(1, 2)


def blur(ink: numpy.ndarray, width: int) -> numpy.ndarray:
    """The mean of each pixel's ``width`` x ``width`` neighbourhood; the same shape (..., h, w) as ``ink``."""
    for axis in (-2, -1):
        ink = sum(numpy.roll(ink, shift - width // 2, axis) for shift in range(width)) / width
    return ink


def random_maps(rng: numpy.random.Generator, n: int) -> numpy.ndarray:
    """Random rotations, shears, scales and shifts.

    Returns
    -------
    maps : float32 (n, 2, 3), from an image's pixel (x, y, 1) to the drawn letter's (x, y), both counted from
        their middles
    """
    angle = rng.normal(0, 0.30, n)                    # radians
    shear = rng.normal(0, 0.25, n)
    size = numpy.exp(rng.normal(0, 0.15, (n, 2)))     # width and height
    shift = rng.normal(0, 2.0, (n, 2))                # image pixels
    cos, sin = numpy.cos(angle), numpy.sin(angle)
    turn = numpy.stack([cos, -sin, sin, cos], -1).reshape(n, 2, 2)
    lean = numpy.stack([numpy.ones(n), shear, numpy.zeros(n), numpy.ones(n)], -1).reshape(n, 2, 2)
    linear = (turn @ lean) * (CELL / SIZE) / size[:, :, None]
    return numpy.concatenate([linear, -linear @ shift[:, :, None]], -1).astype(numpy.float32)


def make(rng: numpy.random.Generator, fonts: tuple[str, ...], n: int) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Makes ``n`` images of letters in ``fonts``.

    Returns
    -------
    images : uint8 (n, 28, 28)
    labels : int32 (n,), 0 for A to 9 for J
    """
    # One image pixel is 4x4 drawn ones. Averaged beforehand, the nearest one stands for all 16.
    letters = blur(draw_letters(fonts), 7).reshape(-1)
    middle = (numpy.arange(SIZE) - (SIZE - 1) / 2).astype(numpy.float32)
    grid = numpy.stack([a.reshape(-1) for a in (*numpy.meshgrid(middle, middle), numpy.ones((SIZE, SIZE)))])
    grid = grid.astype(numpy.float32)                                       # (3, 784)
    labels = rng.integers(0, len(LETTERS), n, dtype=numpy.int32)
    images = numpy.empty((n, SIZE, SIZE), numpy.uint8)
    for start in range(0, n, 1000):  # small enough for the processor's cache
        y = labels[start:start + 1000]
        b = len(y)
        cell = rng.integers(0, len(fonts), b) * len(LETTERS) + y
        at = numpy.clip(random_maps(rng, b) @ grid + CELL / 2, 0, CELL - 1).astype(numpy.int32)  # (b, 2, 784)
        X = letters[(cell[:, None] * CELL + at[:, 1]) * CELL + at[:, 0]]    # (b, 784)
        X = pen(rng, X, b)
        images[start:start + b] = X.reshape(b, SIZE, SIZE)
    return images, labels


def pen(rng, X, b):
    threshold = rng.uniform(0.1, 0.6, (b, 1)).astype('f4')
    X = numpy.clip((X - threshold) * 3, 0, 1)
    ink = rng.uniform(0.5, 1.0, (b, 1)).astype('f4')
    paper = rng.uniform(0, 0.3, (b, 1)).astype('f4')
    X = paper + (ink-paper) * X + rng.standard_normal(X.shape, numpy.float32) * 0.15
    return numpy.clip(X * 255, 0, 255).astype(numpy.uint8)

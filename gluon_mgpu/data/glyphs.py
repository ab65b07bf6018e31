"""An embedded dataset: ten letters drawn from the fonts that matplotlib ships.

    (train_images, train_labels), (test_images, test_labels) = glyphs.load(cache_dir)

For machines without network. Letters A to J, as in notMNIST, 28x28 grey pixels, 60,000 to train on and
10,000 to test on. Test letters come from typefaces that training never sees.
"""
from __future__ import annotations

import contextlib
import os
import tempfile
import zipfile
from pathlib import Path

import numpy

from ..base.machine import folder_for_matplotlib

LETTERS = 'ABCDEFGHIJ'
TRAIN_FONTS = (
    'DejaVuSans', 'DejaVuSans-Bold', 'DejaVuSans-Oblique', 'DejaVuSans-BoldOblique', 'DejaVuSansMono',
    'DejaVuSansMono-Bold', 'DejaVuSansMono-Oblique', 'DejaVuSansMono-BoldOblique', 'DejaVuSerif',
    'DejaVuSerif-Bold', 'DejaVuSerif-Italic', 'DejaVuSerif-BoldItalic', 'STIXGeneral', 'STIXGeneralBol',
    'STIXGeneralItalic', 'STIXGeneralBolIta')
TEST_FONTS = ('cmr10', 'cmb10', 'cmss10', 'cmtt10', 'cmmi10')
NUM_TRAIN, NUM_TEST = 60_000, 10_000
ARRAYS = ('train_images', 'train_labels', 'test_images', 'test_labels')  # as named in the cached file
FORMAT = 1       # of the cached file; to be raised whenever the same seed gives other images

SIZE = 28        # pixels along a side of an image
ZOOM = 4         # letters are drawn this many times as large
CELL = 160       # pixels along a side of the square that a letter is drawn in
CAP_HEIGHT = 88  # pixels of a drawn capital's height
PEN = 13         # pixels of a drawn letter over which its strokes are blurred
# With more noise or wilder poses LeNet stays at 10 % for epochs; with less it is soon at 95 %
NOISE = 0.4      # standard deviation, where paper is about 0 and ink about 1


def draw_letters(fonts: tuple[str, ...]) -> numpy.ndarray:
    """Draw every letter in every font, large, upright and in the middle of its square.

    Parameters
    ----------
    fonts : tuple of str
        Files in matplotlib's font folder, without ``.ttf``.

    Returns
    -------
    numpy.ndarray
        float32 (len(fonts), 10, CELL, CELL), 0 for paper to 1 for ink.
    """
    folder_for_matplotlib()
    # Here, since matplotlib takes most of a second to import and the cached dataset does not need it
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
        canvas = FigureCanvasAgg(Figure(figsize=(width / 100, height / 100), dpi=100))
        for row, font in enumerate(fonts):
            face = FontProperties(fname=str(folder / f'{font}.ttf'))
            zoom = CAP_HEIGHT / TextPath((0, 0), 'H', size=100, prop=face).get_extents().height
            for column, letter in enumerate(LETTERS):
                outline = TextPath((0, 0), letter, size=100, prop=face)
                (x0, y0), (x1, y1) = outline.get_extents().get_points()
                place = (Affine2D().translate(-(x0 + x1) / 2, -(y0 + y1) / 2).scale(zoom)
                         .translate((column + 0.5) * CELL, height - (row + 0.5) * CELL))
                canvas.figure.add_artist(PathPatch(outline, color='black', linewidth=0, transform=place))
        canvas.draw()
        grey = numpy.asarray(canvas.buffer_rgba())[:, :, 0].astype(numpy.float32)
    return (1 - grey / 255).reshape(len(fonts), CELL, len(LETTERS), CELL).swapaxes(1, 2)


def blur(ink: numpy.ndarray, width: int) -> numpy.ndarray:
    """Return the mean of every pixel's `width` x `width` neighbourhood in pictures (..., h, w).

    Parameters
    ----------
    ink : numpy.ndarray, (..., h, w)
        The pictures; they stay as they are.
    width : int
        Pixels.
    """
    for axis in (-2, -1):
        ink = numpy.add.reduce([numpy.roll(ink, i - width // 2, axis) for i in range(width)]) / width
    return ink


def random_poses(rng: numpy.random.Generator, n: int) -> numpy.ndarray:
    """Draw random rotations, shears, sizes and shifts.

    Parameters
    ----------
    rng : numpy.random.Generator
        Draws them.
    n : int
        How many.

    Returns
    -------
    numpy.ndarray
        float32 (n, 2, 3): maps from a pixel (x, y, 1) of an image to the (x, y) of a drawn letter, both
        counted from the middle.
    """
    angle, shear = rng.normal(0, 0.25, n), rng.normal(0, 0.2, n)  # radians; sideways per upwards
    size = numpy.exp(rng.normal(0, 0.18, (n, 2, 1)))              # width and height
    shift = rng.normal(0, 1.5, (n, 2, 1))                         # pixels of an image
    cos, sin = numpy.cos(angle), numpy.sin(angle)
    # [[cos, -sin], [sin, cos]] @ [[1, shear], [0, 1]]
    turned = numpy.stack([cos, cos * shear - sin, sin, sin * shear + cos], -1).reshape(n, 2, 2)
    linear = ZOOM * turned / size
    return numpy.concatenate([linear, -linear @ shift], -1).astype(numpy.float32)


def make(rng: numpy.random.Generator, fonts: tuple[str, ...], n: int) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Make `n` images of letters in `fonts`, as many of each letter, in random order.

    Parameters
    ----------
    rng : numpy.random.Generator
        Draws poses, pens and noise.
    fonts : tuple of str
        Names of fonts that Matplotlib ships.
    n : int
        How many images.

    Returns
    -------
    images, labels : numpy.ndarray
        uint8 (n, 28, 28) and int32 (n,), 0 for A to 9 for J.
    """
    # One pixel of an image is 4x4 drawn ones: blurred beforehand, the nearest of them stands for all
    letters = blur(draw_letters(fonts), PEN).reshape(-1)
    y, x = numpy.indices((SIZE, SIZE), numpy.float32).reshape(2, -1) - (SIZE - 1) / 2
    pixels = numpy.stack([x, y, numpy.ones_like(x)])                                        # (3, 784)
    labels = rng.permutation(numpy.arange(n, dtype=numpy.int32) % len(LETTERS))
    images = numpy.empty((n, SIZE, SIZE), numpy.uint8)
    for start in range(0, n, 1000):  # few enough for the processor's cache
        rows = labels[start:start + 1000]
        cell = rng.integers(0, len(fonts), len(rows)) * len(LETTERS) + rows
        at = random_poses(rng, len(rows)) @ pixels + CELL / 2                               # (b, 2, 784)
        x, y = numpy.clip(at, 0, CELL - 1).astype(numpy.int32).swapaxes(0, 1)
        X = write(rng, letters[(cell[:, None] * CELL + y) * CELL + x])                      # (b, 784)
        images[start:start + 1000] = X.reshape(-1, SIZE, SIZE)
    return images, labels


def write(rng: numpy.random.Generator, X: numpy.ndarray) -> numpy.ndarray:
    """Write blurred letters, float32 (b, 784), with pens of random widths, in random greys, on noisy paper.

    Parameters
    ----------
    rng : numpy.random.Generator
        Draws pens, greys and noise.
    X : numpy.ndarray, (b, 784), float32
        The letters, 0 to 1.

    Returns
    -------
    numpy.ndarray
        uint8 (b, 784).
    """
    # The lower the threshold that makes a blurred stroke ink, the wider the stroke
    threshold, ink, paper = (rng.uniform(least, most, (len(X), 1)).astype(numpy.float32)
                             for least, most in ((0.05, 0.3), (0.8, 1.0), (0.0, 0.1)))
    X = paper + (ink - paper) * numpy.clip((X - threshold) * 4, 0, 1)
    X += NOISE * rng.standard_normal(X.shape, numpy.float32)
    return numpy.clip(X * 255, 0, 255).astype(numpy.uint8)


def load(cache_dir: Path | None, seed: int = 0) -> tuple[tuple, tuple]:
    """Load the dataset, or make it (a few seconds) and keep it in `cache_dir` for the next time.

    Two processes may do so at once. A damaged file there is made anew; a folder that can't be read or
    written only costs the next time.

    Parameters
    ----------
    cache_dir : Path or None
        Made if it isn't there. None: the dataset is made and not kept.
    seed : int
        Decides the images; another seed is another dataset of the same kind.

    Returns
    -------
    (train_images, train_labels), (test_images, test_labels)
        uint8 (60000, 28, 28), int32 (60000,), uint8 (10000, 28, 28), int32 (10000,).
    """
    path = Path(cache_dir) / f'glyphs-v{FORMAT}-seed{seed}.npz' if cache_dir else None
    arrays = _cached(path) if path else None
    if arrays is None:
        train = make(numpy.random.default_rng((seed, 0)), TRAIN_FONTS, NUM_TRAIN)
        test = make(numpy.random.default_rng((seed, 1)), TEST_FONTS, NUM_TEST)
        arrays = [*train, *test]
        if path:
            with contextlib.suppress(OSError):
                _save(path, arrays)
    return tuple(arrays[:2]), tuple(arrays[2:])


def _cached(path: Path) -> list | None:
    """The arrays in a file that `_save` wrote; None if it is missing or damaged."""
    try:
        with path.open('rb') as stream, numpy.load(stream) as file:
            return [file[name] for name in ARRAYS]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None


def _save(path: Path, arrays: list) -> None:
    """Write under another name and rename, so that what bears the name is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        try:
            numpy.savez(file, **dict(zip(ARRAYS, arrays)))
            os.replace(file.name, path)
        except BaseException:  # Ctrl-C as well
            os.unlink(file.name)
            raise

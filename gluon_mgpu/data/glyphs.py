"""The built-in dataset: ten letters drawn from the fonts of Matplotlib, for machines without network.

60,000 training and 10,000 test images of 28x28 grey pixels, the letters A to J, in different fonts.
"""
import contextlib
import io
from pathlib import Path

import numpy

from ..base.files import open_file, write_atomically

LETTERS = 'ABCDEFGHIJ'
TRAIN_FONTS = (
    'DejaVuSans', 'DejaVuSans-Bold', 'DejaVuSans-Oblique', 'DejaVuSans-BoldOblique', 'DejaVuSansMono',
    'DejaVuSansMono-Bold', 'DejaVuSansMono-Oblique', 'DejaVuSansMono-BoldOblique', 'DejaVuSerif',
    'DejaVuSerif-Bold', 'DejaVuSerif-Italic', 'DejaVuSerif-BoldItalic', 'STIXGeneral', 'STIXGeneralBol',
    'STIXGeneralItalic', 'STIXGeneralBolIta')
TEST_FONTS = ('cmr10', 'cmb10', 'cmss10', 'cmtt10', 'cmmi10')
NUM_TRAIN, NUM_TEST = 60_000, 10_000
ARRAYS = ('train_images', 'train_labels', 'test_images', 'test_labels')  # names in the cached file
VERSION = 2      # of the images, in the name of the cached file; increase it when a change gives other images

SIZE = 28        # side of an image in pixels
ZOOM = 4         # pixels of a drawn letter per pixel of an image
CELL = 160       # side of the square of a drawn letter in its pixels
FONT_SIZE, BASELINE = 128, 125  # in its pixels; its capitals are about 90 high
PEN = 13         # width of the blur of a drawn letter in its pixels
# With more noise or larger rotations LeNet stays at 10 % for epochs; with less it soon reaches 95 %
NOISE = 0.4      # standard deviation; paper is about 0, ink about 1


def draw_letters(fonts: tuple[str, ...]) -> numpy.ndarray:
    """Return each letter in each font, upright and centred: float32 (len(fonts), 10, CELL, CELL), ink is 1."""
    # Imported here, because a cached dataset does not need them
    import matplotlib
    from PIL import Image, ImageDraw, ImageFont
    folder = Path(matplotlib.get_data_path(), 'fonts', 'ttf')
    ink = numpy.empty((len(fonts), len(LETTERS), CELL, CELL), numpy.float32)
    for font, cells in zip(fonts, ink):
        face = ImageFont.truetype(str(folder / f'{font}.ttf'), FONT_SIZE, layout_engine=ImageFont.Layout.BASIC)
        for letter, cell in zip(LETTERS, cells):
            image = Image.new('L', (CELL, CELL))
            ImageDraw.Draw(image).text((CELL // 2, BASELINE), letter, fill=255, font=face, anchor='ms')
            cell[:] = image
    return ink / 255


def blur(ink: numpy.ndarray, width: int) -> numpy.ndarray:
    """Return images (..., height, width), averaged over `width` pixels along both axes."""
    for axis in (-2, -1):
        ink = numpy.add.reduce([numpy.roll(ink, i - width // 2, axis) for i in range(width)]) / width
    return ink


def random_poses(rng: numpy.random.Generator, n: int) -> numpy.ndarray:
    """Return `n` random rotations, shears, scales and shifts, each a float32 matrix (2, 3)."""
    # It maps a pixel (x, y, 1) of an image to the point (x, y) of a drawn letter. Both are measured from the centre
    angle, shear = rng.normal(0, 0.25, n), rng.normal(0, 0.2, n)  # radians; horizontal per vertical
    size = numpy.exp(rng.normal(0, 0.18, (n, 2, 1)))              # width and height
    shift = rng.normal(0, 1.5, (n, 2, 1))                         # pixels of an image
    cos, sin = numpy.cos(angle), numpy.sin(angle)
    # [[cos, -sin], [sin, cos]] @ [[1, shear], [0, 1]]
    rotation = numpy.stack([cos, cos * shear - sin, sin, sin * shear + cos], -1).reshape(n, 2, 2)
    linear = ZOOM * rotation / size
    return numpy.concatenate([linear, -linear @ shift], -1).astype(numpy.float32)


def make(rng: numpy.random.Generator, fonts: tuple[str, ...], n: int) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Return uint8 images (n, 28, 28) and int32 labels (n,), 0 for A to 9 for J, balanced and in random order."""
    # A pixel of an image covers 4x4 drawn pixels; they are blurred, so that the nearest one represents all
    letters = blur(draw_letters(fonts), PEN).reshape(-1)
    y, x = numpy.indices((SIZE, SIZE), numpy.float32).reshape(2, -1) - (SIZE - 1) / 2
    pixels = numpy.stack([x, y, numpy.ones_like(x)])                                        # (3, 784)
    labels = rng.permutation(numpy.arange(n, dtype=numpy.int32) % len(LETTERS))
    images = numpy.empty((n, SIZE, SIZE), numpy.uint8)
    for start in range(0, n, 1000):  # 1,000 rows fit in the processor's cache
        rows = labels[start:start + 1000]
        cell = rng.integers(0, len(fonts), len(rows)) * len(LETTERS) + rows
        points = random_poses(rng, len(rows)) @ pixels + CELL / 2                           # (b, 2, 784)
        x, y = numpy.clip(points, 0, CELL - 1).astype(numpy.int32).swapaxes(0, 1)
        X = vary_ink(rng, letters[(cell[:, None] * CELL + y) * CELL + x])                   # (b, 784)
        images[start:start + 1000] = X.reshape(-1, SIZE, SIZE)
    return images, labels


def vary_ink(rng: numpy.random.Generator, X: numpy.ndarray) -> numpy.ndarray:
    """Return blurred letters, float32 (b, 784), with random stroke widths and greys and with noise, as uint8."""
    # A lower threshold between paper and ink makes wider strokes of a blurred letter
    threshold, ink, paper = (rng.uniform(least, most, (len(X), 1)).astype(numpy.float32)
                             for least, most in ((0.05, 0.3), (0.8, 1.0), (0.0, 0.1)))
    X = paper + (ink - paper) * numpy.clip((X - threshold) * 4, 0, 1)
    X += NOISE * rng.standard_normal(X.shape, numpy.float32)
    return numpy.clip(X * 255, 0, 255).astype(numpy.uint8)


def load(cache_dir: Path) -> tuple[tuple, tuple]:
    """Return (train_images, train_labels), (test_images, test_labels): uint8 (n, 28, 28) and int32 (n,) each.

    Generates them in a few seconds, and stores them in `cache_dir`, if possible, for the next call.
    """
    path = cache_dir / f'glyphs-v{VERSION}.npz'
    arrays = _cached(path)
    if not arrays:
        arrays = [*make(numpy.random.default_rng((0, 0)), TRAIN_FONTS, NUM_TRAIN),
                  *make(numpy.random.default_rng((0, 1)), TEST_FONTS, NUM_TEST)]
        content = io.BytesIO()
        numpy.savez(content, **dict(zip(ARRAYS, arrays)))
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, content.getbuffer())
    return tuple(arrays[:2]), tuple(arrays[2:])


def _cached(path: Path) -> list | None:
    """Return the arrays in a cached file, or None if it is missing or damaged."""
    # A damaged file can raise many types, such as zlib.error
    with contextlib.suppress(Exception), open_file(path) as stream, numpy.load(stream) as file:
        return [file[name] for name in ARRAYS]
    return None

"""Reader for image files of any size, converted to what the networks take: 28x28, grey, light on black."""
from __future__ import annotations

import warnings

import numpy

from .idx import SIDE


def read_image(path) -> numpy.ndarray:
    """Return an image file as float32 (28, 28) in [0, 1].

    Reads all formats of Pillow, grey or colour, with 8 or 16 bits. The longer side is scaled to 28 pixels, and a black
    border makes the image square. Transparent pixels become black. If the edge is lighter than half, the image is
    inverted: a shoe on white paper becomes a light shoe on black. Raises ValueError if the file cannot be read as an
    image.
    """
    from PIL import Image, ImageOps
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('error', Image.DecompressionBombWarning)
            with Image.open(path) as file:
                upright = _eight_bits(ImageOps.exif_transpose(file)).convert('RGBA')
    except Exception as error:  # Pillow raises many types for damaged files, such as struct.error
        reason = getattr(error, 'strerror', None) or error
        raise ValueError(f'{path}: cannot be read as an image ({reason}); use a PNG or JPEG file') from None
    black = Image.new('RGBA', upright.size, (0, 0, 0, 255))
    grey = numpy.asarray(Image.alpha_composite(black, upright).convert('L'))
    edge = numpy.concatenate([grey[0], grey[-1], grey[:, 0], grey[:, -1]])
    if edge.mean() > 127.5:
        grey = 255 - grey
    return numpy.asarray(_square(Image.fromarray(grey)), 'float32') / 255


def _eight_bits(image):
    """Return a 16-bit grey image with its upper 8 bits; Pillow itself would clip it at 255."""
    from PIL import Image
    if image.mode == 'F':
        raise ValueError('its pixels are floating-point numbers')
    if not image.mode.startswith('I'):
        return image
    values = numpy.asarray(image)
    if values.min() < 0 or values.max() > 65535:  # mode I can be 32 bits
        raise ValueError('its pixels have more than 16 bits')
    return Image.fromarray((values // 256).astype('uint8'))


def _square(image):
    """Return the image scaled to SIDE x SIDE pixels on black. `ImageOps.pad` fails for some very long images."""
    from PIL import Image
    width, height = (max(1, round(SIDE * side / max(image.size))) for side in image.size)
    square = Image.new('L', (SIDE, SIDE))
    square.paste(image.resize((width, height), Image.Resampling.LANCZOS),
                 (round((SIDE - width) / 2), round((SIDE - height) / 2)))
    return square

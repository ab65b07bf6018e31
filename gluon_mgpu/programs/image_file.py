"""Reader for image files of any size, converted to what the networks take: 28x28, grey, light on black."""
import numpy

from ..base.files import open_file
from ..base.program import reason
from ..data.idx import SIDE

FORMATS = 'PNG', 'JPEG', 'GIF', 'BMP', 'TIFF', 'WEBP', 'PPM'
MAX_SIDE = 1024   # pixels; larger images are shrunk at first


def read_image(path) -> numpy.ndarray:
    """Return an image file, of one of `FORMATS`, as float32 (28, 28) in [0, 1]; raise ValueError for other files.

    The longer side is scaled to 28 pixels, and a black border makes the image square. Transparent pixels become white
    in a dark drawing and black in a light one. With a light edge, it is inverted: a shoe on white paper becomes light.
    """
    from PIL import Image, ImageOps
    try:
        # Not other formats, some of which start other programs, such as Ghostscript
        with open_file(path) as opened, Image.open(opened, formats=FORMATS) as file:
            if file.mode[0] in 'IF':  # Pillow would clip them at 255
                raise ValueError('its pixels have more than 8 bits')
            upright = ImageOps.exif_transpose(file)
            # The mean of squares of pixels, because the arithmetic below needs 60 bytes for each
            shrunk = upright.convert('RGBA').reduce(max(1, max(upright.size) // MAX_SIDE))
            transparent = shrunk.convert('LA')
    except Exception as error:  # Pillow raises many types for damaged files, such as struct.error
        why = reason(error).partition(' <_io')[0]  # without Pillow's "<_io.BufferedReader ...>", the open file
        raise ValueError(f'{path}: cannot be read as an image ({why}); use a PNG or JPEG file') from None
    grey, opacity = (numpy.asarray(transparent, int)[..., i] for i in range(2))
    background = 255 if (grey * opacity).sum() < 127.5 * opacity.sum() else 0
    grey = ((grey * opacity + background * (255 - opacity)) // 255).astype('uint8')
    edge = numpy.concatenate([grey[0], grey[-1], grey[:, 0], grey[:, -1]])
    if edge.mean() > 127.5:
        grey = 255 - grey
    square = ImageOps.pad(Image.fromarray(grey), (SIDE, SIDE), Image.Resampling.LANCZOS)
    return numpy.asarray(square, 'float32') / 255

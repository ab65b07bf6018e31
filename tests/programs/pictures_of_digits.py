"""Pictures for the tests of image files."""
from PIL import Image


def picture(value, size=(56, 56), spot=None, mode='L'):
    image = Image.new(mode, size, value)
    if spot is not None:
        image.paste(spot, (size[0] // 4, size[1] // 4, 3 * size[0] // 4, 3 * size[1] // 4))
    return image

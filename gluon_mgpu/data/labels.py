"""Names of the classes. Source: D2L 4.2, ``FashionMNIST.text_labels``."""
from __future__ import annotations

from .glyphs import LETTERS

NAMES = {
    'fashion-mnist': ('t-shirt', 'trouser', 'pullover', 'dress', 'coat', 'sandal', 'shirt', 'sneaker', 'bag',
                      'ankle boot'),
    'mnist': tuple('0123456789'),
    'glyphs': tuple(LETTERS),
}

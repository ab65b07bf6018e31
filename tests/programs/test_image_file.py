"""Tests of reading image files."""
import subprocess
import sys

import numpy
import pytest
from pictures_of_digits import picture
from PIL import EpsImagePlugin, Image

from gluon_mgpu.programs.image_file import read_image


@pytest.mark.parametrize('name, image, middle', [
    ('dark.png', picture(0, spot=255), 1), ('light.png', picture(255, spot=0), 1),
    ('wide.png', picture(0, (112, 56), spot=255), 1), ('tiny.png', picture(0, (3, 3)), 0),
    ('transparent.png', picture((0, 0, 0, 0), spot=(255, 255, 255, 255), mode='RGBA'), 1),
    ('dark on transparent.png', picture((0, 0, 0, 0), spot=(0, 0, 0, 255), mode='RGBA'), 1),
    ('dark on white.png', picture((255, 255, 255, 0), spot=(0, 0, 0, 255), mode='RGBA'), 1),
    ('nothing.png', picture((0, 0, 0, 0), mode='RGBA'), 0), ('palette.gif', picture(0, spot=255).convert('P'), 1)])
def test_images_of_all_kinds_become_28_by_28_light_on_black(name, image, middle, tmp_path):
    image.save(tmp_path / name)
    found = read_image(tmp_path / name)
    assert (found.shape, found.dtype) == ((28, 28), numpy.dtype('float32'))
    assert (found[0, 0], found[14, 14]) == (0, middle)


def test_a_dataset_image_is_left_as_it_is(tmp_path):
    image = numpy.random.default_rng(0).integers(0, 255, (28, 28), 'uint8')
    image[0] = image[-1] = image[:, 0] = image[:, -1] = 0
    Image.fromarray(image).save(tmp_path / 'a.png')
    assert read_image(tmp_path / 'a.png').tolist() == (image.astype('float32') / 255).tolist()


@pytest.mark.parametrize('name, dtype', [('a.png', 'uint16'), ('a.tiff', '>u2'), ('a.tiff', 'int32'),
                                         ('a.tiff', 'float32')])
def test_an_image_of_more_than_8_bits_is_rejected(name, dtype, tmp_path):
    """Pillow would clip it at 255. Its pixels may be from 0 to 1, to 65,535, or to any other number."""
    Image.fromarray(numpy.full((9, 9), 200, dtype)).save(tmp_path / name)
    with pytest.raises(ValueError, match=r'cannot be read as an image \(its pixels have more than 8 bits\); use a PNG'):
        read_image(tmp_path / name)


def test_files_that_are_not_images_are_rejected(tmp_path):
    (tmp_path / 'a.png').write_text('no image')
    Image.new('L', (9, 9)).save(tmp_path / 'exif.png', exif=b'II*\0\x08')  # cut
    for name, why in (('a.png', 'cannot identify image file'), ('exif.png', '.*'), ('', '.*'),
                      ('missing.png', 'No such file or directory')):
        path = tmp_path / name
        with pytest.raises(ValueError, match=rf'^{path}: cannot be read as an image \({why}\); use a PNG or JPEG'):
            read_image(path)


@pytest.mark.parametrize('side', [11, 56])
def test_an_image_of_a_billion_pixels_is_rejected(side, tmp_path, monkeypatch):
    """Pillow warns above its limit, and raises an error above twice its limit."""
    picture(0, (side, side)).save(tmp_path / 'a.png')
    monkeypatch.setattr(Image, 'MAX_IMAGE_PIXELS', 100)
    with pytest.raises(ValueError, match=r'a.png: cannot be read as an image \(Image size .* exceeds limit'):
        read_image(tmp_path / 'a.png')


@pytest.mark.parametrize('suffix', ['png', 'eps'])
def test_no_other_program_is_started(suffix, tmp_path, monkeypatch):
    """Pillow gives PostScript to Ghostscript, whatever the name of the file is."""
    monkeypatch.setattr(EpsImagePlugin, 'Ghostscript', lambda *args, **options: pytest.fail('Ghostscript was started'))
    path = tmp_path / f'a.{suffix}'
    Image.new('L', (9, 9)).save(path, 'EPS')
    with pytest.raises(ValueError, match='cannot be read as an image'):
        read_image(path)


@pytest.mark.parametrize('name', ['a.png', 'a.jpg', 'a.gif', 'a.bmp', 'a.tiff', 'a.webp', 'a.ppm'])
def test_the_common_formats(name, tmp_path):
    picture((0, 0, 0), spot=(255, 255, 255), mode='RGB').save(tmp_path / name)
    found = read_image(tmp_path / name)
    assert (found[0, 0] < 0.1, found[14, 14] > 0.9) == (True, True)


@pytest.mark.parametrize('mode', ['L', 'RGBA', 'P'])
def test_a_large_image_needs_little_memory(mode, tmp_path):
    """It is shrunk before anything else; 80 million pixels took 5 GB, 60 bytes each."""
    side = 4000
    picture(0, (side, side), spot=255).convert(mode).save(tmp_path / 'a.png')
    # VmHWM, because `ru_maxrss` also counts the process that started this one
    code = ('import pathlib, re, sys; from gluon_mgpu.programs.image_file import read_image\n'
            'peak = lambda: int(re.search("VmHWM:(.*)kB", pathlib.Path("/proc/self/status").read_text())[1]) * 1024\n'
            'read_image(sys.argv[2]); before = peak()\n'
            'image = read_image(sys.argv[1]); print(image[0, 0], image[14, 14], peak() - before)')
    picture(0).save(tmp_path / 'small.png')
    done = subprocess.run([sys.executable, '-c', code, tmp_path / 'a.png', tmp_path / 'small.png'], capture_output=True,
                          text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    *shades, memory = done.stdout.split()
    assert shades == ['0.0', '1.0']
    assert int(memory) < 22 * side**2


def test_shrinking_keeps_the_picture(tmp_path):
    """A large image and a small one of the same content become the same, to a level of grey or two."""
    small = Image.fromarray(numpy.random.default_rng(0).integers(0, 100, (100, 100), 'uint8'))
    small.save(tmp_path / 'small.png')
    small.resize((3000, 3000), Image.Resampling.NEAREST).save(tmp_path / 'large.png')
    assert abs(read_image(tmp_path / 'small.png') - read_image(tmp_path / 'large.png')).max() < 3 / 255

"""Tests of the built-in dataset: its images, its seed, its cache."""
from types import SimpleNamespace

import numpy
import pytest
from slow import slow

from gluon_mgpu.data import glyphs
from gluon_mgpu.data.glyphs import CELL, LETTERS, NUM_TEST, NUM_TRAIN, PEN, TEST_FONTS, TRAIN_FONTS, ZOOM


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
    return glyphs.load(tmp_path_factory.mktemp('cache'))


def make_glyphs(seed: int = 0, n: int = 100, fonts: tuple = TEST_FONTS):
    return glyphs.make(numpy.random.default_rng(seed), fonts, n)


def assert_same(a, b):
    for (images_a, labels_a), (images_b, labels_b) in zip(a, b):
        numpy.testing.assert_array_equal(images_a, images_b)
        numpy.testing.assert_array_equal(labels_a, labels_b)


@pytest.mark.slow
def test_the_whole_dataset(whole):
    for (images, labels), n in zip(whole, (NUM_TRAIN, NUM_TEST)):
        assert (images.dtype, images.shape) == ('uint8', (n, 28, 28))
        assert (labels.dtype, labels.shape) == ('int32', (n,))
        assert numpy.bincount(labels).tolist() == [n // 10] * 10
        assert numpy.mean(labels[1:] == labels[:-1]) < 0.2  # in random order
        assert len(numpy.unique(images.reshape(n, -1), axis=0)) == n
        assert 0.2 < images.mean() / 255 < 0.5 and images.min() == 0 and images.max() == 255
    assert (NUM_TRAIN, NUM_TEST) == (60_000, 10_000)


@pytest.mark.slow
def test_the_images_are_neither_noise_nor_trivial(whole):
    """The nearest class mean of the training images recognizes many test images, but not all."""
    (X, y), (X_test, y_test) = (((images / 255).reshape(len(images), -1), labels) for images, labels in whole)
    means = numpy.stack([X[y == k].mean(0) for k in range(10)])
    y_hat = ((means ** 2).sum(1) - 2 * X_test @ means.T).argmin(1)
    accuracies = [numpy.mean(y_hat[y_test == k] == k) for k in range(10)]
    assert 0.3 < numpy.mean(accuracies) < 0.8
    assert min(accuracies) > 0.1  # no letter has wrong labels


def test_the_images_show_the_letters_of_their_labels():
    """The mean image of each label is most like the upright letter of this label in the fonts' mean."""
    images, labels = make_glyphs(n=2000)
    places = (ZOOM * (numpy.arange(28) - 13.5) + CELL / 2).astype(int)
    drawn = glyphs.blur(glyphs.draw_letters(TEST_FONTS), PEN).mean(0)[:, places][:, :, places]
    means = numpy.stack([images[labels == k].mean(0) for k in range(10)])
    means, drawn = ((array - array.mean(0)).reshape(10, -1) for array in (means, drawn))
    cosines = means @ drawn.T / numpy.outer(numpy.linalg.norm(means, axis=1), numpy.linalg.norm(drawn, axis=1))
    assert cosines.argmax(1).tolist() == list(range(10)) and cosines.diagonal().min() > 0.6


def test_test_fonts_are_not_trained_on():
    assert not set(TRAIN_FONTS) & set(TEST_FONTS)
    assert len(set(TRAIN_FONTS)) == len(TRAIN_FONTS) and len(set(TEST_FONTS)) == len(TEST_FONTS)


@pytest.mark.parametrize('fonts', [slow(TRAIN_FONTS), TEST_FONTS])
def test_every_font_has_every_letter_whole(fonts):
    ink = glyphs.draw_letters(fonts)
    assert (ink.dtype, ink.shape) == ('float32', (len(fonts), len(LETTERS), CELL, CELL))
    assert ink.min() == 0 and ink.max() == 1
    assert (ink.mean((2, 3)) > 0.02).all()
    # A margin so wide that the blur reaches neither the edge nor the neighbour
    margin = PEN // 2 + 1
    inner = ink[..., margin:-margin, margin:-margin]
    assert ink.sum() == pytest.approx(inner.sum())
    different = numpy.unique(ink.reshape(len(fonts) * len(LETTERS), -1), axis=0)
    assert len(different) == len(fonts) * len(LETTERS)
    # Upright, and not mirrored: compared with H, which is symmetric, in its font
    rows, columns = ((ink.mean(axis) * numpy.arange(CELL)).sum(-1) / ink.mean(axis).sum(-1) for axis in (3, 2))
    A, E, F, H = map(LETTERS.index, 'AEFH')
    assert (rows[:, F] < rows[:, H]).all() and (rows[:, H] < rows[:, A]).all() and (columns[:, E] < columns[:, H]).all()


def test_blur_by_hand():
    ink = numpy.zeros((2, 5, 5), numpy.float32)
    ink[1, 2, 3] = 9
    expected = numpy.zeros_like(ink)
    expected[1, 1:4, 2:5] = 1
    numpy.testing.assert_allclose(glyphs.blur(ink, 3), expected, atol=1e-6)  # float32 thirds


def test_a_pose_by_hand():
    """A turn with the cosine 0.6 and the sine 0.8, a shear of 0.5, twice the width, and a shift to the pixel (1, 2)."""
    drawn = iter([[numpy.arctan2(0.8, 0.6)], [0.5], [[[numpy.log(2)], [0]]], [[[1], [2]]]])
    pose, = glyphs.random_poses(SimpleNamespace(normal=lambda *_: numpy.array(next(drawn))), 1)
    pixels = numpy.array([[1, 2], [2, 2], [1, 3]])
    points = pixels @ pose[:, :2].T + pose[:, 2]
    numpy.testing.assert_allclose(points, glyphs.ZOOM * numpy.array([[0, 0], [0.3, 0.8], [-0.25, 1]]), atol=1e-5)


def test_the_ink_by_hand(monkeypatch):
    monkeypatch.setattr(glyphs, 'NOISE', 0.2)
    drawn = iter([0.1, 0.9, 0.1])  # threshold, ink, paper
    rng = SimpleNamespace(uniform=lambda *_: numpy.array([[next(drawn)]]),
                          standard_normal=lambda *_: numpy.array([[0, 0, 0, 1, -1, 1]]))
    X = numpy.array([[0.05, 0.225, 0.35, 0.225, 0.05, 0.35]])
    expected = numpy.array([[0.1, 0.5, 0.9, 0.7, 0, 1]])  # the last two are clipped
    numpy.testing.assert_allclose(glyphs.vary_ink(rng, X), 255 * expected, atol=1)  # rounded down


def test_the_seed_determines_the_images():
    (a, a_labels), (b, b_labels), (c, _) = make_glyphs(0), make_glyphs(0), make_glyphs(1)
    numpy.testing.assert_array_equal(a, b)
    numpy.testing.assert_array_equal(a_labels, b_labels)
    assert (a != c).mean() > 0.5


def test_generated_once_and_then_read(tmp_path, small_glyphs, monkeypatch):
    first = glyphs.load(tmp_path / 'new' / 'cache')
    assert [len(images) for images, _ in first] == [60, 20]
    assert [path.suffix for path in (tmp_path / 'new' / 'cache').iterdir()] == ['.npz']
    monkeypatch.setattr(glyphs, 'make', None)
    assert_same(glyphs.load(tmp_path / 'new' / 'cache'), first)


def damages(content: bytes) -> dict:
    middle = len(content) // 2
    flags = content.index(b'PK\x01\x02') + 8  # of the first file in the zip's directory: bit 0 means encrypted
    return {'empty': b'', 'cut': content[:middle], 'encrypted': content[:flags] + b'\1' + content[flags + 1:],
            'changed': content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1:]}


@pytest.mark.parametrize('damage', ['empty', 'cut', 'changed', 'encrypted', 'lacks an array'])
def test_a_damaged_cache_is_replaced(tmp_path, small_glyphs, damage):
    first = glyphs.load(tmp_path)
    path, = tmp_path.iterdir()
    content = path.read_bytes()
    if damage == 'lacks an array':
        numpy.savez(path, train_images=first[0][0])
    else:
        path.write_bytes(damages(content)[damage])
    assert_same(glyphs.load(tmp_path), first)
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_a_cache_that_cannot_be_written(tmp_path, small_glyphs):
    (tmp_path / 'file').touch()
    assert_same(glyphs.load(tmp_path / 'file'), glyphs.load(tmp_path / 'cache'))

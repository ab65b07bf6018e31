"""Prediction with a trained run: evaluate it on the test set, or classify image files."""
import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy

from ..base.flags import Parser, path, picture, text
from ..base.pictures import in_lines, matplotlib_defaults, write_picture
from ..base.progress import ProgressBar
from ..base.text import print_text
from ..data import load_data
from ..data.glyphs import LETTERS
from ..devices import parse_devices
from ..mxnet_setup.compat import npx
from ..parallel.split import split_and_load
from ..settings.settings import ALL
from .image_file import read_image
from .load_run import place_of_checkpoint, trained_network

NAMES = {  # of the classes; the first line is D2L 4.2's ``FashionMNIST.text_labels``
    'fashion-mnist': ('t-shirt', 'trouser', 'pullover', 'dress', 'coat', 'sandal', 'shirt', 'sneaker', 'bag',
                      'ankle boot'),
    'mnist': tuple('0123456789'),
    'glyphs': tuple(LETTERS),
}


def probabilities(net: Callable, images: numpy.ndarray, devices: list, batch_size: int = 256) -> numpy.ndarray:
    """Return the probabilities (n, 10) for float32 images (n, 28, 28) in [0, 1], computed on all devices; blocks."""
    found = []
    with ProgressBar(desc='predicting', total=len(images), unit=' images', leave=False) as bar:
        for start in range(0, len(images), batch_size):
            X = images[start:start + batch_size, None]  # (n, 28, 28) -> (n, 1, 28, 28)
            shards = [npx.softmax(net(X_shard)) for X_shard in split_and_load(X, devices)]
            found += [shard.asnumpy() for shard in shards]
            bar.update(len(X))
    return numpy.concatenate(found)


@matplotlib_defaults()
def draw_predictions(images: numpy.ndarray, labels: numpy.ndarray, predicted: numpy.ndarray, names: tuple, path,
                     title: str) -> None:
    """Draw the first images (n, 28, 28), wrongly predicted ones in red, and the confusion matrix; write the picture."""
    from matplotlib.figure import Figure
    fig = Figure(figsize=(6.4, 13.6), dpi=120)  # narrow enough for a phone
    fig.suptitle(title, y=0.995, fontsize='medium')
    top, bottom = fig.subfigures(2, squeeze=False).flat
    _draw_images(top, images, labels, predicted, names)
    _draw_confusion(bottom, labels, predicted, names)
    write_picture(fig, path)


def _draw_images(figure: Any, images, labels, predicted, names: tuple) -> None:
    for axes, image, label, guess in zip(figure.subplots(6, 6).flat, images, labels, predicted):
        axes.imshow(image, cmap='gray_r')
        line, color = names[guess], 'black'
        if label != guess:
            line, color = f'{line}\n(is {names[label]})', 'tab:red'
        axes.set_title(line, fontsize='small', color=color, pad=3, y=1)
        axes.set(xticks=[], yticks=[])
    figure.subplots_adjust(left=0.02, right=0.98, top=0.88, bottom=0.01, hspace=0.62)


def _draw_confusion(figure: Any, labels, predicted, names: tuple) -> None:
    counts = numpy.zeros((len(names), len(names)), int)
    numpy.add.at(counts, (labels, predicted), 1)
    axes = figure.subplots()
    axes.imshow(counts, cmap='Blues')
    for (true, guess), number in numpy.ndenumerate(counts):
        axes.text(guess, true, number or '', ha='center', va='center', fontsize='small',
                  color='white' if number > counts.max() / 2 else 'black')
    axes.set(xticks=range(len(names)), yticks=range(len(names)), yticklabels=names, xlabel='predicted', ylabel='true',
             title=f'{counts.sum():,} test images')
    axes.set_xticklabels(names, rotation=45, ha='right')
    figure.subplots_adjust(left=0.2, right=0.98, top=0.96, bottom=0.14)


def main(argv: list | None = None) -> int:
    """Run ``python -m gluon_mgpu predict``; return the exit status."""
    parser = Parser('gluon_mgpu predict', 'Evaluate a trained run on the test set, or classify image files.')
    parser.add_argument('run', type=path, metavar='RUN', help='folder of a run, or one of its checkpoints')
    parser.add_argument('images', type=path, metavar='IMAGE', nargs='*', default=[], help='image files, of any size')
    parser.add_argument('--devices', type=text, metavar='LIST',
                        help="names of devices, such as 'cpu:0' (default: those of the run)")
    parser.add_argument('--data-dir', type=path, metavar='DIR',
                        help='folder with fashion-mnist/ or mnist/ (default: that of the run)')
    parser.add_argument('--out', type=picture, metavar='FILE', help="(default: predictions.png in the run's folder)")
    return parser.run(argv, _run)


def _run(args: argparse.Namespace) -> None:
    if args.images and (args.out or args.data_dir):
        raise ValueError('--out and --data-dir are for the test set: leave them out, or the image files')
    images = [read_image(path) for path in args.images]
    net, devices, metadata = trained_network(args.run, args.devices and parse_devices(args.devices))
    config = metadata['config']
    names = NAMES[config['dataset']]
    if images:
        for file, row in zip(args.images, probabilities(net, numpy.stack(images), devices)):
            likeliest = numpy.argsort(-row, kind='stable')[:3]
            print_text(f'{Path(file).name}: ' + ', '.join(f'{names[i]} {row[i]:.0%}' for i in likeliest))
        return
    run = Path(args.run)
    out = args.out or (run if run.is_dir() else run.parent) / 'predictions.png'
    # The rows and batches of the run's evaluation, because each device has its own statistics of batch norm
    batch_size = config['batch_size']
    _, test_iter = load_data(config['dataset'], batch_size, args.data_dir or config.get('data_dir'),
                             test_size=config.get('test_size'), name=lambda name: ALL[name].flag)
    batches = [(X.asnumpy()[:, 0], y.asnumpy()) for X, y in test_iter]  # (n, 1, 28, 28) -> (n, 28, 28)
    test_images, labels = (numpy.concatenate(parts) for parts in zip(*batches, strict=True))
    predicted = probabilities(net, test_images, devices, batch_size).argmax(axis=1)
    share = (predicted == labels).mean()
    print_text(f'test acc: {share:.4f} on {len(labels):,} test images, {place_of_checkpoint(metadata)}')
    result = f'{config["chapter"]} on {config["dataset"]}: {share:.1%} correct'
    draw_predictions(test_images, labels, predicted, names, out, f'{in_lines(args.run)}\n{in_lines(result)}')
    print_text(f'picture: {out}')

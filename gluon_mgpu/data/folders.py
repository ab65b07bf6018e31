"""Folders of dataset files: one that the user names, or the user's cache folder."""
import os
from pathlib import Path

from ..base.arguments import full_path

FILES = ('train-images-idx3-ubyte.gz', 'train-labels-idx1-ubyte.gz',
         't10k-images-idx3-ubyte.gz', 't10k-labels-idx1-ubyte.gz')


class DownloadError(ValueError):
    """Error for a dataset that cannot be downloaded."""


def find(folder: Path, name: str) -> Path | None:
    """Return the path of one of `FILES` in `folder`, with or without ``.gz``, or None."""
    paths = folder / name, folder / name.removesuffix('.gz')
    return next((path for path in paths if path.exists()), None)


def cache_dir() -> Path:
    """Return ``gluon-mgpu`` in XDG_CACHE_HOME, else in ``~/.cache``."""
    return Path(os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache') / 'gluon-mgpu'


def named_folder(dataset: str, data_dir: str | os.PathLike, name: str) -> Path:
    """Return the folder with the four files of `dataset`: ``data_dir/dataset``, or `data_dir` if it has that name."""
    data_dir = Path(full_path(name, data_dir)).absolute()
    folder = data_dir / dataset
    # The files of both datasets have the same names: only the folder's name distinguishes the datasets
    if data_dir.name == dataset and not any(find(folder, file) for file in FILES):
        folder = data_dir
    if missing := [file for file in FILES if not find(folder, file)]:
        raise ValueError(f'{name} {folder}: {", ".join(missing)} missing; put the four files of {dataset} there, '
                         'name another folder, or train on generated images with --dataset glyphs')
    return folder

"""Folders of dataset files: one that the user names, or the user's cache folder."""
import contextlib
import os
from pathlib import Path

from ..base.arguments import full_path

FILES = ('train-images-idx3-ubyte.gz', 'train-labels-idx1-ubyte.gz',
         't10k-images-idx3-ubyte.gz', 't10k-labels-idx1-ubyte.gz')
FROM_ENVIRONMENT = ', from GLUON_MGPU_DATA'


class MissingError(ValueError):
    """Error for a dataset that is not there; its arguments are a reason and a remedy."""

    def __str__(self) -> str:
        return '; '.join(self.args)


class DownloadError(MissingError):
    """Error for a dataset that cannot be downloaded."""


def find(folder: Path, name: str) -> Path | None:
    """Return the path of one of `FILES` in `folder`, with or without ``.gz``, or None; OSError if unreadable."""
    for path in (Path(folder) / name, Path(folder) / name[:-len('.gz')]):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            path.stat()
            return path
    return None


def cache_dir() -> Path:
    """Return ``gluon-mgpu`` in XDG_CACHE_HOME, else in ``~/.cache``; DownloadError if there is no home folder."""
    try:
        return Path(os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache') / 'gluon-mgpu'
    except RuntimeError:
        raise DownloadError('there is no home folder to store downloads in', 'set XDG_CACHE_HOME to a writable '
                            'folder, or name a folder that contains fashion-mnist/ or mnist/ with --data-dir') from None


def named_folder(dataset: str, data_dir: str | os.PathLike, source: str = '') -> Path:
    """Return the folder with the four files of `dataset`: ``data_dir/dataset``, or `data_dir` if it has that name."""
    data_dir = Path(full_path('GLUON_MGPU_DATA' if source else 'data_dir', data_dir)).absolute()
    folder = data_dir / dataset
    try:
        # The files of both datasets have the same names: only the folder's name distinguishes the datasets
        if data_dir.name == dataset and not any(find(folder, name) for name in FILES):
            folder = data_dir
        missing = [name for name in FILES if not find(folder, name)]
    except OSError as error:
        raise ValueError(f'{folder}{source}: cannot be read ({error.strerror}); make it readable') from None
    if missing:
        raise MissingError(f'{folder}{source}: {", ".join(missing)} missing', f'put the four files of {dataset} there, '
                           'name another folder with --data-dir, or train on generated images with --dataset glyphs')
    return folder

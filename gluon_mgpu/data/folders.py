"""Where the files of a dataset are: in a folder that the user names, else in the user's cache folder.

Needs neither MXNet nor NumPy.
"""
from __future__ import annotations

import os
from pathlib import Path

FILES = ('train-images-idx3-ubyte.gz', 'train-labels-idx1-ubyte.gz',
         't10k-images-idx3-ubyte.gz', 't10k-labels-idx1-ubyte.gz')  # a whole dataset


class DownloadError(ValueError):
    """The files cannot be had; one line that says why, mirror by mirror, and what to do."""


def find(folder: Path, name: str) -> Path | None:
    """Find one of `FILES` in `folder`, there as ``name`` or without its ``.gz``; None if missing."""
    paths = (Path(folder) / name, Path(folder) / name[:-len('.gz')])
    return next((path for path in paths if path.exists()), None)


def cache_dir() -> Path:
    """The folder for downloaded and made data: ``gluon-mgpu`` in XDG_CACHE_HOME, else in ``~/.cache``.

    Raises
    ------
    DownloadError
        If XDG_CACHE_HOME is not set and the user has no home folder, as happens in containers.
    """
    try:
        return Path(os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache') / 'gluon-mgpu'
    except (RuntimeError, KeyError):  # KeyError: Python 3.9
        raise DownloadError('there is no home folder to keep data in; let XDG_CACHE_HOME name a folder that can '
                            'be written, or --data-dir or GLUON_MGPU_DATA one that holds the files') from None


def named_folder(dataset: str, data_dir: str | os.PathLike) -> Path:
    """Find the folder that holds the four files of `dataset`, in a folder that the user names.

    Parameters
    ----------
    dataset : str
        ``'fashion-mnist'`` or ``'mnist'``.
    data_dir : path
        A folder that holds one called `dataset`, or is called `dataset` itself; ``~`` is a home folder.

    Returns
    -------
    Path
        ``data_dir/dataset``, or else `data_dir`.

    Raises
    ------
    ValueError
        If files are missing, or folders can't be read.
    """
    try:
        data_dir = Path(data_dir).expanduser().absolute()
    except (RuntimeError, KeyError):  # KeyError: Python 3.9
        raise ValueError(f'{data_dir}: the home folder that ~ stands for is not known; '
                         'name the folder by its whole path') from None
    # The files of both datasets bear the same names: only the folder's name tells which ones they are
    places = [data_dir / dataset, data_dir] if data_dir.name == dataset else [data_dir / dataset]
    missing = {}
    for folder in places:
        try:
            missing[folder] = [name for name in FILES if not find(folder, name)]
        except OSError as error:
            raise ValueError(f'{folder}: cannot be read ({error.strerror}); make it a readable folder') from None
        if not missing[folder]:
            return folder
    # The folder that was meant lacks the fewest; where both lack all, it is the one that the user named
    folder = min(reversed(places), key=lambda place: len(missing[place]))
    raise ValueError(f'{folder}: {", ".join(missing[folder])} missing; put the four files of {dataset} there, or '
                     'name no folder (--data-dir, GLUON_MGPU_DATA) to have them downloaded')

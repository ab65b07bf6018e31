"""The folder that a program leaves its results in: a new one, and no other program's."""
from __future__ import annotations

import json
import os
import time
from itertools import count
from pathlib import Path


def check_free(path: str | os.PathLike | None) -> None:
    """Refuse a path that cannot become a new folder; makes nothing.

    Raises
    ------
    ValueError
        If there is something in it already, or it is no folder.
    """
    if path is not None and os.path.lexists(path) and (not os.path.isdir(path) or os.listdir(path)):
        raise _taken(Path(path))


def new_folder(path: str | os.PathLike | None, program: str, record: str = 'config.json',
               content: dict | None = None) -> Path:
    """Make the folder for what a program leaves, and the first file in it.

    Parameters
    ----------
    path : path-like, optional
        A folder that is not there yet or is empty; by default one in ``runs/``, named by the program and the time.
    program : str
        The program's name.
    record : str
        The name of the file. Whoever makes it has the folder: two programs never share one.
    content : dict, optional
        What is written there, as JSON.

    Returns
    -------
    Path

    Raises
    ------
    ValueError
        If there is something in `path` already.
    OSError
        If the folder cannot be made.
    """
    named = path is not None
    default = f'runs/{program}-{time.strftime("%Y%m%d-%H%M%S")}'
    for number in count(1):
        folder = Path(path) if path is not None else Path(default + (f'-{number}' if number > 1 else ''))
        try:
            check_free(folder)
            folder.mkdir(parents=True, exist_ok=True)
            with open(folder / record, 'x') as file:
                file.write(json.dumps(content or {}, indent=2) + '\n')
            return folder
        except (FileExistsError, ValueError):  # another run's
            if named:
                raise _taken(folder) from None
    raise AssertionError('count() never ends')


def _taken(path: Path) -> ValueError:
    return ValueError(f'{path} is not an empty folder, and a run overwrites nothing: give another --out-dir')

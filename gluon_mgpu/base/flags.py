"""Command-line flags: the parser of all programs, and types for argparse that name the flag, the value and the rule.

    python -m gluon_mgpu.scratch --num-epochs 0
    scratch: --num-epochs 0: must be an integer of at least 1; --help shows all flags        and exit status 2
"""
from __future__ import annotations

import argparse
import contextlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from .checks import integer, positive
from .program import BAD_INPUT, run_program

PICTURES = '.png', '.pdf', '.svg', '.jpg'


class Parser(argparse.ArgumentParser):
    """Command line of ``python -m MODULE``; reports a wrong flag in one line."""

    def __init__(self, module: str, description: str | None, **settings):
        super().__init__(prog=f'python -m {module}', description=description, **settings)
        self.program = module.rpartition('.')[2]

    def error(self, message: str) -> NoReturn:
        """Print `message` and exit with status 2."""
        message = re.sub(r'^argument ([^:]*): (.*: must )', r'\1 \2', message)  # --lr 0: must ...
        self.exit(BAD_INPUT, f'{self.program}: {message}; --help shows all flags\n')

    def run(self, argv: list | None, work: Callable[[argparse.Namespace], object]) -> int:
        """Parse `argv`, call `work` with the flags and return the exit status; see `run_program`."""
        args = self.parse_args(argv)
        return run_program(self.program, lambda: work(args))


def integer_flag(minimum: int = 1, maximum: int | None = None) -> Callable[[str], int]:
    """Return a type for argparse: an integer from `minimum` to `maximum`."""
    return number_flag(integer, minimum, maximum, kind=int)


def number_flag(check: Callable = positive, *limits: float | None, kind: type = float) -> Callable[[str], Any]:
    """Return a type for argparse: a number that `check` accepts, by default one above 0; see `base.checks`."""
    def convert(value: Any):
        with contextlib.suppress(ValueError):
            value = kind(value)
        try:
            return check('', value, *limits)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error).strip()) from None
    return convert


def text(value: str) -> str:
    """Return `value`, for argparse; refuse '', which an unset shell variable gives."""
    if not value:
        raise argparse.ArgumentTypeError("'': must not be empty; give a value or leave the flag out")
    return value


def picture(value: str) -> Path:
    """Return the path of a picture, for argparse; a name without a suffix gets .png."""
    path = Path(text(value))
    if value.endswith('/') or path.name in ('', '..') or os.path.isdir(path):
        raise argparse.ArgumentTypeError(f'{value}: must be the name of a file, not of a folder')
    if path.suffix.lower() not in ('', *PICTURES):
        raise argparse.ArgumentTypeError(f'{value}: must end in {", ".join(PICTURES)}')
    return path if path.suffix else path.with_name(f'{path.name}.png')

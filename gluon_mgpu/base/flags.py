"""Command-line flags: the parser of all programs, and types for argparse that name the flag, the value and the rule."""
import argparse
import contextlib
import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from .arguments import full_path, not_empty
from .program import BAD_INPUT, run_program
from .text import printable

PICTURES = '.png', '.pdf', '.svg', '.jpg'


class Parser(argparse.ArgumentParser):
    """Command line of ``python -m PROGRAM``; reports a wrong flag in one line."""

    def __init__(self, program: str, description: str | None, **settings):
        super().__init__(prog=f'python -m {program}', description=description, allow_abbrev=False, **settings)
        self.program = re.split('[. ]', program)[-1]

    def error(self, message: str) -> NoReturn:
        message = re.sub(r'^argument ([^:]*): (.*: must )', r'\1 \2', message)  # --lr 0: must ...
        self.exit(BAD_INPUT, f'{self.program}: {printable(message)}; --help shows all flags\n')

    def run(self, argv: list | None, work: Callable[[argparse.Namespace], object]) -> int:
        """Parse `argv`, call `work` with the flags and return the exit status; errors become one line."""
        args = self.parse_args(argv)
        return run_program(self.program, lambda: work(args))


def checked_flag(check: Callable, *limits: float, kind: type = str) -> Callable[[str], Any]:
    """Return a type for argparse: a `kind` that ``check(name, value, *limits)`` accepts."""
    def convert(value: Any):
        with contextlib.suppress(ValueError):
            value = kind(value)
        try:
            return check('', value, *limits)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error).strip()) from None
    return convert


text = checked_flag(not_empty)  # types for argparse
path = checked_flag(full_path)


def quoted(path: str | os.PathLike) -> str:
    """Return a path as one word of a printed command, also if it contains spaces."""
    return shlex.quote(str(path))


def picture(value: str) -> Path:
    """Return the path of a picture, for argparse; a name without a suffix gets .png."""
    file = Path(path(value))
    if file.suffix.lower() not in ('', *PICTURES):
        raise argparse.ArgumentTypeError(f'{value}: must end in {", ".join(PICTURES)}')
    return file if file.suffix else file.with_name(f'{file.name}.png')

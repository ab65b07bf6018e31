"""Virtual environments of the other packages, created if they are missing."""
from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

# Name -> arguments of pip, in this order
RECIPES = {
    # d2l pins packages that can no longer be installed, so it is installed without dependencies. Its MXNet needs
    # numpy.bool, which NumPy has up to 1.23; pandas 2.2 needs a newer NumPy.
    'd2l': (['mxnet==1.9.1', 'numpy<1.24', 'pandas<2.2', 'matplotlib', 'matplotlib-inline', 'ipython', 'requests'],
            ['--no-deps', 'd2l==1.0.3']),
    # PyTorch's index has a build without CUDA; PyPI's build adds several GB
    'torch': (['numpy'],
              ['torch==2.13.0', '--extra-index-url', 'https://download.pytorch.org/whl/cpu']),
}
# Name -> versions of Python that it can be installed on, the preferred one first
PYTHONS = {
    'd2l': ('3.11', '3.10', '3.9', '3.8'),  # newer ones have no distutils, and NumPy no wheels
    'torch': ('3.15', '3.14', '3.13', '3.12', '3.11', '3.10'),
}
# Name -> an import that shows that the environment works
PROOF = {
    'd2l': 'from d2l.mxnet import split_batch, resnet18, evaluate_accuracy_gpus, load_data_fashion_mnist',
    'torch': 'import torch.distributed',
}
VERSIONS = ('mxnet', 'd2l', 'torch', 'numpy')


class MissingEnvironmentError(ValueError):
    """Error: an environment is missing and cannot be created; one line says why."""


def python_of(folder: Path) -> Path:
    """Return the interpreter of the environment in `folder`."""
    return folder / ('Scripts/python.exe' if sys.platform == 'win32' else 'bin/python')


def find_python(versions: tuple) -> str:
    """Return this Python if it is one of `versions`, else the first of them with venv on PATH or in pyenv."""
    if f'{sys.version_info[0]}.{sys.version_info[1]}' in versions:
        return sys.executable
    pyenv = Path(os.environ.get('PYENV_ROOT') or Path.home() / '.pyenv') / 'versions'
    for version in versions:
        for python in (*(Path(folder, f'python{version}') for folder in os.get_exec_path()),
                       *pyenv.glob(f'{version}.*/bin/python')):
            try:  # an existing file may not work: pyenv has one for each inactive version
                _call([python, '-c', 'import ensurepip, venv'])
            except MissingEnvironmentError:
                continue
            return str(python)
    raise MissingEnvironmentError(f'needs Python {versions[-1]} to {versions[0]} with venv; none on PATH or in {pyenv}')


def make(name: str, env_dir: Path, log=print) -> Path:
    """Create the environment ``env_dir/name`` from `RECIPES` if it is missing, and return its interpreter.

    Raises
    ------
    MissingEnvironmentError
        If it cannot be created or does not work. An incomplete environment is deleted.
    """
    folder = Path(env_dir).absolute() / name
    python = python_of(folder)
    if not python.exists():
        base = find_python(PYTHONS[name])
        log(f'creating {folder} with {base}, which takes a minute or more')
        try:
            _call([base, '-m', 'venv', '--clear', folder])
            for arguments in RECIPES[name]:
                _call([python, '-m', 'pip', 'install', '--quiet', '--disable-pip-version-check', *arguments])
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    try:
        _call([python, '-W', 'ignore', '-c', PROOF[name]])
    except MissingEnvironmentError as error:
        raise MissingEnvironmentError(f'{error} (delete {folder} to create it again)') from None
    return python


def versions(python) -> dict:
    """Return the versions of Python and of the packages in `VERSIONS` that are installed."""
    code = ('import importlib.metadata as m, json, platform\n'
            'found = {d.metadata["Name"]: d.version for d in m.distributions()}\n'
            f'wanted = {{n: found[n] for n in {VERSIONS!r} if n in found}}\n'
            'print(json.dumps({"python": platform.python_version(), **wanted}))')
    return json.loads(_call([python, '-c', code]))


def _call(command: list) -> str:
    """Run a command and return its output; turn an error into one line."""
    try:
        done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False)
    except OSError as error:
        raise MissingEnvironmentError(str(error)) from None
    if done.returncode:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        errors = [line for line in lines if 'error' in line.lower()] or lines or ['no error message']
        raise MissingEnvironmentError(errors[-1].strip()[:200])
    return done.stdout

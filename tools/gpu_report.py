"""Report from a machine with GPUs: runs the commands of gpu_report.txt and writes their output to one file.

    python tools/gpu_report.py [--out gpu-report.txt] [--timeout SECONDS]

A command that fails does not stop the others. Exit status: 0 if all commands succeeded, 1 if some failed, 2 if there is
no GPU; then nothing is written. With --check, it only looks for a GPU.
"""
import argparse
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO))  # so that this works before anything is installed

from gluon_mgpu import __version__  # noqa: E402
from gluon_mgpu.devices.nvidia_driver import ask_driver  # noqa: E402


def commands_in(text: str) -> list[str]:
    """Return the commands of a list, one per line."""
    return [line for line in text.splitlines() if line]


def run(command: str, timeout: float) -> tuple[str, str, float]:
    """Run a command in the shell, with this Python's environment first on the path. Blocks.

    Returns
    -------
    output : str
        Both streams. A line that is rewritten, such as a progress bar, appears in its last state.
    ended : str
        Such as 'exit status 0'.
    seconds : float
    """
    folder = str(Path(sys.executable).parent)
    path = os.pathsep.join([folder, os.environ.get('PATH', '')])
    environment = {**os.environ, 'VIRTUAL_ENV': sys.prefix, 'PATH': path}
    began = time.monotonic()
    with subprocess.Popen(command, shell=True, cwd=REPO, env=environment, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True) as process:
        try:
            output, _ = process.communicate(timeout=timeout)
            ended = f'exit status {process.returncode}'
        except BaseException as error:  # also Ctrl-C
            os.killpg(process.pid, signal.SIGKILL)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            try:
                output, _ = process.communicate(timeout=1)
            except subprocess.TimeoutExpired as still_open:  # a process outside the group has the pipe
                output = still_open.output or b''
            ended = f'killed after {timeout:g} s'
    lines = [line.rstrip().rpartition('\r')[2] for line in output.decode(errors='replace').split('\n')]
    return '\n'.join(lines).strip(), ended, time.monotonic() - began


def main(argv: list | None = None) -> int:
    """Run the list; return the exit status."""
    parser = argparse.ArgumentParser(prog='gpu_report', description=__doc__.partition('\n')[0], allow_abbrev=False)
    parser.add_argument('--list', default=REPO / 'tools' / 'gpu_report.txt', type=Path,
                        help='the file with the commands')
    parser.add_argument('--out', default='gpu-report.txt', help='the file to write (default: %(default)s)')
    parser.add_argument('--timeout', type=float, default=1800, help='seconds for each command (default: %(default)s)')
    parser.add_argument('--check', action='store_true', help='only look for a GPU')
    args = parser.parse_args(argv)
    driver = ask_driver()
    if not driver.gpus:
        print(f'gpu_report: no GPU to report on: {driver.reason}', file=sys.stderr)
        return 2
    if args.check:
        return 0
    if not args.list.is_file():
        parser.error(f'--list {args.list}: no such file')
    commands = commands_in(args.list.read_text(encoding='utf-8'))
    failed = 0
    try:
        with open(args.out, 'w', encoding='utf-8') as report:
            print(f'gluon_mgpu {__version__}, Python {platform.python_version()}, {platform.platform()}', file=report)
            for gpu in driver.gpus:
                print(f'gpu:{gpu.index}  {gpu}', file=report)
            for number, command in enumerate(commands, 1):
                print(f'{number}/{len(commands)}  {command}', flush=True)
                output, ended, seconds = run(command, args.timeout)
                failed += ended != 'exit status 0'
                print(f'           {ended}, {seconds:.1f} s')
                print(f'\n=== {number}/{len(commands)}  {command}\n{output}\n--- {ended}, {seconds:.1f} s', file=report,
                      flush=True)
            print(f'\n{len(commands) - failed} of {len(commands)} succeeded', file=report)
    except OSError as error:
        print(f'gpu_report: {args.out} cannot be written ({error.strerror}): name another file with --out',
              file=sys.stderr)
        return 2
    print(f'{len(commands) - failed} of {len(commands)} succeeded: their output is in {args.out}; '
          'please attach it to an issue of the repository')
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())

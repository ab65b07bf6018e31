"""Download of Fashion-MNIST and MNIST from the first of several mirrors that has them.

A file gets its name only when its checksum is correct: it is never incomplete, even after Ctrl-C.
"""
from __future__ import annotations

import io
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pooch
from requests.exceptions import HTTPError, RequestException, SSLError

from ..base.progress import ProgressBar
from .folders import FILES, DownloadError, find

ANSWER_TIMEOUT = 5  # seconds in which all mirrors together must answer
READ_TIMEOUT, PIECE = 10, 2**12  # a mirror must send at least one piece of these bytes in these seconds
TITLES = {'fashion-mnist': 'Fashion-MNIST', 'mnist': 'MNIST'}


class Mirror(NamedTuple):
    """A web folder with the four files of a dataset, and their checksums there."""
    url: str
    checksums: dict[str, str]


def _sums(algorithm: str, *hashes: str) -> dict[str, str]:
    return {name: f'{algorithm}:{digest}' for name, digest in zip(FILES, hashes)}


_ZALANDO = _sums('md5', '8d4fb7e6c68d591d4c3dfef9ec88bf0d', '25c81989df183df01b3e8a0aad5dffbe',
                 'bef4ecab320f06d8554ea6380940ec79', 'bb300cfdad3c16e7a12a480ee83cd310')
_LECUN = _sums('md5', 'f68b3c2dcbeaaa9fbdd348bbdeb94873', 'd53e105ee54ea40749a09fcbcd1e9432',
               '9fb629c4189551a2d022fa330f9573f3', 'ec29112dd5afa0611ce80d1b7f02629c')
_GITHUB = 'https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/'
_MXNET = 'https://apache-mxnet.s3-accelerate.dualstack.amazonaws.com/gluon/dataset/'
MIRRORS = {
    'fashion-mnist': (
        Mirror('http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/', _ZALANDO),
        Mirror(_GITHUB, _ZALANDO),
        # MXNet compressed the same images again; checksums from its gluon/data/vision/datasets.py
        Mirror(_MXNET + 'fashion-mnist/', _sums(
            'sha1', '0cf37b0d40ed5169c6b3aba31069a9770ac9043d', '236021d52f1e40852b06a4c3008d8de8aef1e40b',
            '626ed6a7c06dd17c0eec72fa3be1740f146a2863', '17f9ab60e7257a1620f4ad76bbbaf857c3920701')),
    ),
    'mnist': (
        Mirror('https://ossci-datasets.s3.amazonaws.com/mnist/', _LECUN),
        Mirror('https://storage.googleapis.com/cvdf-datasets/mnist/', _LECUN),
        Mirror(_MXNET + 'mnist/', _sums(
            'sha1', '6c95f4b05d2bf285e1bfb0e7960c31bd3b3f8a7d', '2a80914081dc54586dbdf242f9805a6b8d2a15fc',
            'c3a25af1f52dad7f726cce8cacb138654b760d48', '763e7fa3757d93b0cdec073cef058b2004252c17')),
    ),
}


def download(dataset: str, folder: Path, progress: bool = True) -> None:
    """Download the files of a dataset that are missing in `folder`, which is created if necessary.

    Raises DownloadError if no mirror has the files (without network, after `ANSWER_TIMEOUT` seconds), or `folder`
    cannot be used. Source: D2L downloads through MXNet's dataset classes, which know a single host.
    """
    folder, title = Path(folder), TITLES[dataset]
    pooch.get_logger().setLevel('WARNING')  # otherwise it prints a line per file
    hosts_by_problem: dict[str, list] = {}
    try:
        if all(find(folder, name) for name in FILES):
            return
        folder.mkdir(parents=True, exist_ok=True)
        for mirror, problem in _check_mirrors(MIRRORS[dataset]):
            problem = problem or _download_from(mirror, folder, progress)
            if not problem:
                return
            hosts_by_problem.setdefault(problem, []).append(urlsplit(mirror.url).netloc)
    except OSError as error:
        raise DownloadError(f'{title} could not be stored in {folder} ({error.strerror or error})',
                            'set XDG_CACHE_HOME to a writable folder') from None
    problems = '; '.join(f'{", ".join(hosts)} {problem}' for problem, hosts in hosts_by_problem.items())
    raise DownloadError(f'{title} could not be downloaded ({problems})',
                        'use --data-dir to name a folder with the files')


def _check_mirrors(mirrors: tuple[Mirror, ...]) -> Iterator[tuple[Mirror, str]]:
    """Yield each mirror, in order, with what is wrong with it, or ''. All are asked at the same time."""
    has_file = pooch.HTTPDownloader(timeout=ANSWER_TIMEOUT)
    # In threads also because the timeouts of requests do not limit the look-up of host names
    answers = [_in_thread(has_file, mirror.url + FILES[-1], None, None, True) for mirror in mirrors]
    deadline = time.monotonic() + ANSWER_TIMEOUT
    for mirror, answer in zip(mirrors, answers):
        try:
            problem = '' if answer.result(max(0, deadline - time.monotonic())) else 'without the files'
        except SSLError:
            problem = 'without a trusted certificate'
        except ValueError as error:  # a wrong setting, such as ALL_PROXY
            problem = f'not asked, {error}'
        except (RequestException, futures.TimeoutError):
            problem = 'unreachable'
        except OSError as error:  # such as missing certificates
            problem = f'not asked, {error}'
        yield mirror, problem


def _download_from(mirror: Mirror, folder: Path, progress: bool) -> str:
    """Download the files missing in `folder` from one mirror; return what went wrong, or ''."""
    try:
        with tempfile.TemporaryDirectory(dir=folder) as temporary:
            store = pooch.create(path=temporary, base_url=mirror.url, registry=mirror.checksums)
            for name in FILES:
                if not find(folder, name):
                    _fetch(store, name, progress)
                    os.replace(Path(temporary) / name, folder / name)
    except HTTPError as error:
        return f'answered with HTTP status {error.response.status_code}'
    except (RequestException, futures.TimeoutError):
        return 'stopped sending or is too slow'
    except ValueError:
        return 'sent a file with a wrong checksum'
    return ''


def _fetch(store: pooch.Pooch, name: str, progress: bool) -> None:
    """Download a file; raise TimeoutError if less than `PIECE` bytes arrive in `READ_TIMEOUT` seconds."""
    # file: a bar that is disabled would not count. total: pooch evaluates bool(bar), which needs it
    with ProgressBar(desc=name, total=1, unit='B', unit_scale=True, leave=False,
                     file=None if progress else io.StringIO()) as bar:
        # In a thread, because no timeout of requests notices a mirror that sends single bytes
        file = _in_thread(store.fetch, name, None, pooch.HTTPDownloader(bar, chunk_size=PIECE, timeout=READ_TIMEOUT))
        before = -1
        while not file.done() and bar.n > before:
            before = bar.n
            futures.wait([file], READ_TIMEOUT)
        try:
            file.result(0)
        finally:
            del file  # its error refers to this frame; the cycle would keep the connection open


def _in_thread(work: Callable, *args) -> futures.Future:
    """Call a function in a daemon thread, which may be left behind."""
    result: futures.Future = futures.Future()

    def call():
        try:
            result.set_result(work(*args))
        except Exception as error:
            result.set_exception(error.with_traceback(None))  # a traceback would keep the connection open

    threading.Thread(target=call, daemon=True).start()
    return result

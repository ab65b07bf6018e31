"""Fashion-MNIST and MNIST, fetched from the first of several mirrors that delivers them.

Each file is written under another name in the same folder, compared with its checksum and only then
renamed: what bears its name is whole, also after Ctrl-C and when two processes start at once.
"""
from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pooch
from requests.exceptions import HTTPError, RequestException, SSLError
from tqdm import tqdm

from .folders import FILES, DownloadError, find

ANSWER_TIMEOUT = 5  # seconds for all mirrors together to show that they are there
READ_TIMEOUT = 10   # seconds without a byte before a transfer counts as broken
UNREACHABLE = 'is unreachable'
NO_CERTIFICATES = 'cannot be asked without certificates'


class Mirror(NamedTuple):
    """A place on the web that holds the four files of a dataset, and their checksums there."""
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
        # MXNet compressed the same images anew; its sums are those in gluon/data/vision/datasets.py
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
    """Download the files of a dataset that `folder` lacks; returns when all are there.

    Source: D2L downloads through MXNet's dataset classes; here it doesn't take MXNet or its one host.

    Parameters
    ----------
    dataset : str
        ``'fashion-mnist'`` or ``'mnist'``.
    folder : Path
        Made if it isn't there. Files in it are kept; a later file may come from another mirror.
    progress : bool
        Show a bar on stderr for each file.

    Raises
    ------
    DownloadError
        If no mirror delivers, or `folder` can't be read or written. Without network, after
        `ANSWER_TIMEOUT` seconds at most.
    """
    folder, failures = Path(folder), []
    try:
        if all(find(folder, name) for name in FILES):
            return
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DownloadError(f'{dataset} cannot be downloaded: {folder} cannot be used ({error.strerror}); '
                            'let XDG_CACHE_HOME name a folder that can be written') from None
    pooch.get_logger().setLevel('WARNING')  # else it tells of every file on the screen
    for mirror, answer in _ask(MIRRORS[dataset]):
        if answer == 'ok':
            answer = _fetch(mirror, folder, progress)
        if answer == 'ok':
            return
        failures.append(f'{urlsplit(mirror.url).netloc} {answer}')
    why = ', '.join(failures)
    if NO_CERTIFICATES in why:
        why += f' ({_missing_bundle()} names no file: mend or unset it)'
    raise DownloadError(f'{dataset} cannot be downloaded: {why}; put its files in a folder '
                        'that --data-dir or GLUON_MGPU_DATA names, or take --dataset glyphs')


def _ask(mirrors: tuple[Mirror, ...]) -> Iterator[tuple[Mirror, str]]:
    """Yield each mirror, in order, with its answer to whether it is there: 'ok', or what is wrong.

    All are asked at once, in threads: the time-outs of requests bound neither the look-up of a name nor
    a host with many addresses, so that one after the other could take minutes without network.
    """
    answers = {}

    def ask(mirror):
        head = pooch.HTTPDownloader(timeout=ANSWER_TIMEOUT)
        try:
            there = head(mirror.url + FILES[-1], None, None, check_only=True)
            answers[mirror.url] = 'ok' if there else 'does not have the files'
        except SSLError:
            answers[mirror.url] = 'shows no certificate that is trusted here'
        except RequestException:
            answers[mirror.url] = UNREACHABLE
        except (OSError, ValueError) as error:  # not an answer: requests can't even ask
            answers[mirror.url] = NO_CERTIFICATES if _missing_bundle() else f'cannot be asked ({error})'

    threads = [threading.Thread(target=ask, args=(mirror,), daemon=True) for mirror in mirrors]
    deadline = time.monotonic() + ANSWER_TIMEOUT
    for thread in threads:
        thread.start()
    for mirror, thread in zip(mirrors, threads):
        thread.join(max(0, deadline - time.monotonic()))
        yield mirror, answers.get(mirror.url, UNREACHABLE)


def _missing_bundle() -> str:
    """The variable that names the file of certificates, with its value, if no such file exists; else ''."""
    for name in ('REQUESTS_CA_BUNDLE', 'CURL_CA_BUNDLE'):  # requests takes the first that is set
        path = os.environ.get(name)
        if path:
            return '' if os.path.exists(path) else f'{name}={path!r}'
    return ''


def _fetch(mirror: Mirror, folder: Path, progress: bool) -> str:
    """Fetch the files that `folder` lacks from one mirror; returns 'ok', or what went wrong."""
    store = pooch.create(path=folder, base_url=mirror.url, registry=mirror.checksums)
    try:
        for name in FILES:
            if find(folder, name):
                continue
            # pooch asks whether the bar is true, which tqdm answers only with a total
            with tqdm(desc=name, total=1, unit='B', unit_scale=True, leave=False,
                      disable=not progress) as bar:
                http = pooch.HTTPDownloader(bar, chunk_size=2**16, timeout=READ_TIMEOUT)
                store.fetch(name, downloader=http)
    except (RequestException, ValueError, OSError) as error:
        return _reason(error, folder)
    return 'ok'


def _reason(error: Exception, folder: Path) -> str:
    """A few words for an error, where requests and pooch take several lines."""
    if isinstance(error, HTTPError) and error.response is not None:
        return f'answers with HTTP status {error.response.status_code}'
    if isinstance(error, RequestException):
        return 'broke off'
    if isinstance(error, OSError):
        return f'delivers, but {folder} cannot be written ({error.strerror})'
    return 'delivers a file with another checksum'

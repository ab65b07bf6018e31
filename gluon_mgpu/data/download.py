"""Download of Fashion-MNIST and MNIST from the first of several mirrors that has them, with the right checksums."""
import errno
import hashlib
import os
import re
import threading
from pathlib import Path
from urllib.parse import urlsplit

import requests
from requests.exceptions import HTTPError, RequestException, SSLError

from ..base.files import write_atomically
from ..base.progress import ProgressBar
from .folders import FILES, DownloadError, find

TIMEOUT, PIECE = 5, 2**12  # a mirror must send at least one piece of these bytes in these seconds
MAX_SIZE = 2**26           # bytes; the largest file has 26 MB
TITLES = {'fashion-mnist': 'Fashion-MNIST', 'mnist': 'MNIST'}
CHECKSUMS = {  # SHA-256 of each of `FILES`
    'fashion-mnist': ('3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84',
                      'a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845',
                      '346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073',
                      '67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5'),
    'mnist': ('440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609',
              '3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c',
              '8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6',
              'f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6'),
}
MIRRORS = {  # web folders with these files, HTTPS first
    'fashion-mnist': ('https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/',
                      'http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/'),
    'mnist': ('https://ossci-datasets.s3.amazonaws.com/mnist/',
              'https://storage.googleapis.com/cvdf-datasets/mnist/'),
}


def download(dataset: str, folder: Path, progress: bool = True) -> None:
    """Download the files of a dataset that are missing in `folder`, which is created; tries the mirrors in turn."""
    folder, title = Path(folder), TITLES[dataset]
    hosts_by_problem: dict[str, list] = {}
    try:
        if all(find(folder, name) for name in FILES):
            return
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        for mirror in MIRRORS[dataset]:
            if not (problem := _download_from(mirror, CHECKSUMS[dataset], folder, progress)):
                return
            hosts_by_problem.setdefault(problem, []).append(urlsplit(mirror).netloc)
    except OSError as error:
        raise DownloadError(f'{title} could not be stored in {folder} ({error.strerror or error})',
                            'set XDG_CACHE_HOME to a writable folder') from None
    problems = '; '.join(f'{", ".join(hosts)} {problem}' for problem, hosts in hosts_by_problem.items())
    raise DownloadError(f'{title} could not be downloaded ({problems})',
                        f'if you have the files, name a folder that contains {dataset}/ with --data-dir')


def _download_from(mirror: str, checksums: tuple[str, ...], folder: Path, progress: bool) -> str:
    """Download the files missing in `folder` from one mirror; return what went wrong, or ''."""
    for name, checksum in zip(FILES, checksums, strict=True):
        if find(folder, name):
            continue
        try:
            content = _fetch(mirror + name, progress)
        except HTTPError as error:
            return f'answered with HTTP status {error.response.status_code}'
        except SSLError:
            return 'without a trusted certificate'
        except ValueError as error:  # a wrong setting, such as ALL_PROXY
            return f'not asked, {error}'
        except (RequestException, TimeoutError):
            return 'unreachable or too slow'
        except OSError as error:  # such as missing certificates
            return f'not asked, {error}'
        if hashlib.sha256(content).hexdigest() != checksum:
            return 'sent a file with a wrong checksum'
        write_atomically(folder / name, content)
    return ''


def _fetch(url: str, progress: bool) -> bytes:
    """Return the content of a file; raise TimeoutError if less than `PIECE` bytes arrive in `TIMEOUT` seconds."""
    content = bytearray()
    errors: list[Exception] = []

    def receive() -> None:
        try:
            with requests.get(url, stream=True, timeout=TIMEOUT) as response:
                response.raise_for_status()
                length = response.headers.get('Content-Length', '')
                bar.total = int(length) if re.fullmatch('[0-9]{1,12}', length) else None  # only for the progress
                for piece in response.iter_content(PIECE):
                    content.extend(piece)
                    bar.update(len(piece))
                    if len(content) > MAX_SIZE:  # its checksum is wrong
                        break
        except Exception as error:
            errors.append(error)

    # In a thread, because no timeout of requests limits the look-up of a host name, or notices single bytes
    thread, before = threading.Thread(target=receive, daemon=True), -PIECE
    with ProgressBar(desc=url.rpartition('/')[2], unit='B', unit_scale=True, leave=False, shown=progress) as bar:
        thread.start()
        while thread.is_alive() and len(content) >= before + PIECE:
            before = len(content)
            thread.join(TIMEOUT)
    if thread.is_alive():
        raise TimeoutError
    if errors:
        raise errors[0]
    return bytes(content)

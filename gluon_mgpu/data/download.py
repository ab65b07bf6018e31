"""Download of Fashion-MNIST and MNIST from the first of several mirrors that has them, with the right checksums."""
import hashlib
from concurrent import futures
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

import requests
from requests import exceptions

from ..base.files import write_atomically
from ..base.progress import ProgressBar
from .folders import FILES, DownloadError, find

TIMEOUT = 5       # seconds without an answer or the next bytes
LIMIT = 600       # seconds for a whole file
MAX_SIZE = 2**26  # bytes; the largest file has 26 MB
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
    folder = Path(folder)
    mirrors = [*MIRRORS[dataset]]
    problems: list[str] = []
    try:
        for name, checksum in zip(FILES, CHECKSUMS[dataset]):
            while not find(folder, name):
                if not mirrors:
                    raise DownloadError(f'{dataset} could not be downloaded ({"; ".join(problems)}); if you have '
                                        f'the files, name a folder that contains {dataset}/ with --data-dir')
                folder.mkdir(parents=True, exist_ok=True)
                content, problem = _fetch(mirrors[0] + name, checksum, progress)
                if problem:
                    problems.append(f'{urlsplit(mirrors.pop(0)).netloc} {problem}')
                else:
                    write_atomically(folder / name, content)
    except OSError as error:
        raise DownloadError(f'{dataset} could not be stored in {folder} ({error.strerror or error}); '
                            'set XDG_CACHE_HOME to a writable folder') from None


def _fetch(url: str, checksum: str, progress: bool) -> tuple[bytes, str]:
    """Return the content of a file, and what went wrong, or ''."""
    # In a thread, because a server that sends single bytes, also of its header, can delay each function of requests
    received: futures.Future = futures.Future()
    try:
        with ProgressBar(desc=url.rpartition('/')[2], unit='B', unit_scale=True, leave=False, shown=progress) as bar:
            Thread(target=_receive, args=(url, bar, received), daemon=True).start()
            content = received.result(LIMIT)
        right = hashlib.sha256(content).hexdigest() == checksum
        return content, '' if right else 'sent a file with a wrong checksum'
    except exceptions.SSLError:
        return b'', 'without a trusted certificate'
    except (exceptions.ChunkedEncodingError, exceptions.ConnectionError, exceptions.Timeout, futures.TimeoutError):
        return b'', 'unreachable or too slow'
    except (OSError, ValueError) as error:  # such as a wrong setting, ALL_PROXY for example, or endless redirects
        return b'', f'failed, {error}'


def _receive(url: str, bar: ProgressBar, received: futures.Future) -> None:
    """Let `received` have the content of a file, or the error."""
    content = bytearray()
    try:
        with requests.get(url, stream=True, timeout=TIMEOUT) as response:
            response.raise_for_status()
            bar.total = response.raw.length_remaining
            for piece in response.iter_content(2**16):
                content += piece
                bar.update(len(piece))
                if len(content) > MAX_SIZE:  # its checksum is wrong
                    break
        received.set_result(bytes(content))
    except Exception as error:
        received.set_exception(error)

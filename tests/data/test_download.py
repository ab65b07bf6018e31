"""Tests of downloads from local web servers that fail like real ones."""
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from idx_files import dataset, file_contents
from limits import limits
from local_mirror import LocalMirror, checksums
from refused import refused

import gluon_mgpu
from gluon_mgpu.data import download as module
from gluon_mgpu.data.download import download
from gluon_mgpu.data.folders import FILES

CONTENTS = file_contents(dataset())
MIRRORS = module.MIRRORS  # the real ones
REMEDY = '; if you have the files, name a folder that contains mnist/ with --data-dir'


@pytest.fixture(autouse=True)
def no_endless_download(request):
    """End a test after a time in which it could not end by itself, as with code that waits for a mirror for ever."""
    with limits(90 if request.node.get_closest_marker('slow') else 40):
        yield


@pytest.fixture(autouse=True)
def local_only(monkeypatch):
    """Use only the mirrors of the test, and no proxy."""
    monkeypatch.setattr(module, 'MIRRORS', {})
    monkeypatch.setitem(module.CHECKSUMS, 'mnist', checksums(CONTENTS))
    for name in ('no_proxy', 'NO_PROXY'):  # requests looks for the first one first
        monkeypatch.setenv(name, '127.0.0.1,dead.test')


@pytest.fixture
def serve(monkeypatch):
    """Return a function that starts a mirror and appends it to the list of mirrors."""
    servers = []

    def start(trouble=None, contents=CONTENTS):
        if 'stalls' in (trouble or {}).values():
            monkeypatch.setattr(module, 'TIMEOUT', 1)
        servers.append(LocalMirror(contents, trouble))
        add(servers[-1].mirror)
        return servers[-1]

    def add(mirror):
        module.MIRRORS['mnist'] = (*module.MIRRORS.get('mnist', ()), mirror)

    start.add = add
    yield start
    for server in servers:
        server.close()


@pytest.fixture
def dead():
    """A mirror whose host refuses connections."""
    with socket.socket() as taken:  # bound, and not listening
        taken.bind(('127.0.0.1', 0))
        yield f'http://127.0.0.1:{taken.getsockname()[1]}/'


def content_of(folder: Path) -> dict:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def host(mirror: str) -> str:
    return urlsplit(mirror).netloc


def error_of(folder: Path) -> str:
    """Return the error message, one line, when no mirror has the files."""
    return refused(download, 'mnist', folder, progress=False)


def test_the_mirrors_of_both_datasets():
    assert set(MIRRORS) == set(module.CHECKSUMS) == {'fashion-mnist', 'mnist'}
    for listed in MIRRORS.values():
        assert len({host(mirror) for mirror in listed}) >= 2
        assert all(re.fullmatch(r'https?://.+/', mirror) for mirror in listed)
        assert listed[0].startswith('https://')
    for sums in module.CHECKSUMS.values():
        assert len(sums) == len(set(sums)) == len(FILES)
        assert all(re.fullmatch(r'[0-9a-f]{64}', checksum) for checksum in sums)


def test_all_files(tmp_path, serve):
    server = serve()
    download('mnist', tmp_path / 'new' / 'mnist', progress=False)
    assert content_of(tmp_path / 'new' / 'mnist') == CONTENTS
    assert server.fetched == list(FILES)


def test_existing_files_are_kept(tmp_path, serve):
    server = serve()
    (tmp_path / FILES[0]).write_bytes(b'mine')
    (tmp_path / FILES[1][:-len('.gz')]).write_bytes(b'mine, not compressed')
    download('mnist', tmp_path, progress=False)
    assert server.fetched == list(FILES[2:])
    assert (tmp_path / FILES[0]).read_bytes() == b'mine'
    download('mnist', tmp_path, progress=False)
    assert server.fetched == list(FILES[2:])


def test_a_full_folder_needs_no_network(tmp_path, serve, dead):
    serve.add(dead)
    for name in FILES:
        (tmp_path / name).touch()
    download('mnist', tmp_path, progress=False)  # a request to the dead mirror would be an error
    assert content_of(tmp_path) == dict.fromkeys(FILES, b'')


@pytest.mark.parametrize('trouble', ['missing', 'wrong bytes', 'truncated', 'stalls'])
@pytest.mark.parametrize('bad', [0, 2])
def test_the_second_mirror_replaces_a_damaged_file_of_the_first(tmp_path, serve, trouble, bad):
    first, second = serve({FILES[bad]: trouble}), serve()
    download('mnist', tmp_path, progress=False)
    assert content_of(tmp_path) == CONTENTS
    assert first.fetched == list(FILES[:bad + 1])
    assert second.fetched == list(FILES[bad:])


@pytest.mark.parametrize('trouble, problem', [
    ('missing', 'failed, 404 Client Error: '), ('wrong bytes', 'sent a file with a wrong checksum'),
    ('endless', 'sent a file with a wrong checksum'), ('truncated', ''), ('stalls', 'unreachable or too slow'),
    ('trickles', 'unreachable or too slow'), ('header trickles', 'unreachable or too slow'),
    ('no gzip', 'failed, '), ('redirects', 'failed, Exceeded 30 redirects.')])
def test_no_part_of_a_damaged_file_remains(tmp_path, serve, monkeypatch, trouble, problem):
    monkeypatch.setattr(module, 'MAX_SIZE', 10**6)
    if 'trickles' in trouble:
        monkeypatch.setattr(module, 'LIMIT', 1)
    server = serve({FILES[0]: trouble})
    start = time.monotonic()
    message = error_of(tmp_path)
    assert time.monotonic() - start < 10  # even if the server stalls
    assert message.startswith(f'mnist could not be downloaded ({host(server.mirror)} {problem}')
    assert message.endswith(REMEDY)
    assert content_of(tmp_path) == {}
    assert {*server.fetched} == {FILES[0]}


def test_all_mirrors_are_named(tmp_path, serve, dead):
    serve.add(dead)
    absent = serve(contents={})
    wrong = serve({FILES[0]: 'wrong bytes'})
    assert error_of(tmp_path) == (
        f'mnist could not be downloaded ({host(dead)} unreachable or too slow; {host(absent.mirror)} failed, '
        f'404 Client Error: Not Found for url: {absent.mirror}{FILES[0]}; {host(wrong.mirror)} sent a file with a '
        f'wrong checksum){REMEDY}')


def test_a_folder_that_cannot_be_created(tmp_path, serve):
    server = serve()
    (tmp_path / 'file').touch()
    message = error_of(tmp_path / 'file' / 'mnist')
    assert message == (f'mnist could not be stored in {tmp_path}/file/mnist (Not a directory); '
                       'set XDG_CACHE_HOME to a writable folder')
    assert server.fetched == []


def test_missing_certificates(tmp_path, serve, monkeypatch):
    """One of the real mirrors uses plain HTTP, and needs none."""
    monkeypatch.setenv('REQUESTS_CA_BUNDLE', '/no/such.pem')
    serve.add('https://127.0.0.1:1/')
    message = error_of(tmp_path)
    assert message.startswith('mnist could not be downloaded (127.0.0.1:1 failed, ')
    assert message.endswith(f'invalid path: /no/such.pem){REMEDY}')
    serve()
    download('mnist', tmp_path, progress=False)
    assert content_of(tmp_path) == CONTENTS


def test_a_mirror_without_a_trusted_certificate(tmp_path, serve, monkeypatch):
    for name in ('REQUESTS_CA_BUNDLE', 'CURL_CA_BUNDLE'):
        monkeypatch.delenv(name, raising=False)
    server = serve()  # without TLS
    monkeypatch.setitem(module.MIRRORS, 'mnist', (server.mirror.replace('http:', 'https:'),))
    assert f'({host(server.mirror)} without a trusted certificate);' in error_of(tmp_path)


def test_a_proxy_that_needs_another_package(tmp_path, serve, monkeypatch):
    for name in ('no_proxy', 'NO_PROXY', 'http_proxy', 'HTTP_PROXY'):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv('ALL_PROXY', 'socks5://127.0.0.1:9')
    monkeypatch.setitem(sys.modules, 'socks', None)
    server = serve()
    assert f'({host(server.mirror)} failed, Missing dependencies for SOCKS support.);' in error_of(tmp_path)


def test_output_on_the_screen(tmp_path, serve, capfd, monkeypatch):
    serve()
    download('mnist', tmp_path / 'a')
    assert capfd.readouterr() == ('', '')  # stderr is a log
    monkeypatch.setattr('sys.stderr.isatty', lambda: True)
    download('mnist', tmp_path / 'b', progress=False)
    assert capfd.readouterr() == ('', '')
    download('mnist', tmp_path / 'c')
    out, err = capfd.readouterr()
    assert out == ''
    assert all(name in err for name in FILES)
    assert 'mnist/' not in err and '127.0.0.1' not in err


def start_download(server: LocalMirror, folder: Path) -> subprocess.Popen:
    """Start a process that downloads to `folder`."""
    # Jobs in the background of a shell script ignore Ctrl-C, so the process sets its handler again
    program = ('import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n'
               'from gluon_mgpu.data import download as module\n'
               'module.MIRRORS, module.CHECKSUMS = {"mnist": [sys.argv[1]]}, {"mnist": sys.argv[3:]}\n'
               'module.download("mnist", sys.argv[2])')
    args = [server.mirror, str(folder), *checksums(CONTENTS)]
    return subprocess.Popen([sys.executable, '-c', program, *args], stderr=subprocess.PIPE, text=True,
                            cwd=Path(gluon_mgpu.__file__).parents[1])


def test_an_interrupted_download(tmp_path, serve):
    server = serve({FILES[1]: 'stalls'})
    process = start_download(server, tmp_path)
    assert server.stalled.wait(30)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode != 0
    assert 'KeyboardInterrupt' in err
    assert content_of(tmp_path) == {FILES[0]: CONTENTS[FILES[0]]}

"""A local web server that serves files, or fails like real servers."""
import contextlib
import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def checksums(files: dict) -> tuple:
    """Return the entry for these files in `CHECKSUMS`."""
    return tuple(hashlib.sha256(content).hexdigest() for content in files.values())


class LocalMirror:
    """Web server that serves `files` (name -> bytes) until `close`.

    `trouble` maps a file's name to a fault: 'missing', 'wrong bytes', 'truncated', 'stalls' (half of the file, then
    nothing until the server closes), 'endless', 'trickles' or 'header trickles' (a byte each 0.1 s), 'redirects' (to
    itself) or 'no gzip' (although the header says so).
    """

    def __init__(self, files: dict, trouble: dict | None = None) -> None:
        self.files, self.trouble = files, trouble or {}
        self.fetched = []                      # names in the order of requests
        self.stalled = threading.Event()       # set once a transfer has stalled
        self.closing = threading.Event()
        self.server = ThreadingHTTPServer(('127.0.0.1', 0), self._handler())
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    @property
    def mirror(self) -> str:
        """The entry for this server in `MIRRORS`."""
        return f'http://127.0.0.1:{self.server.server_port}/data/'

    def close(self) -> None:
        self.closing.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def _handler(self) -> type:
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                name = self.path.rpartition('/')[2]
                owner.fetched.append(name)
                trouble = owner.trouble.get(name)
                found = name in owner.files and trouble != 'missing'
                content = owner.files[name] if found else b''
                if trouble == 'header trickles':
                    self.trickle()
                    return
                self.send_response(302 if trouble == 'redirects' else 200 if found else 404)
                if trouble == 'redirects':
                    self.send_header('Location', self.path)
                if trouble == 'no gzip':
                    self.send_header('Content-Encoding', 'gzip')
                if trouble != 'endless':
                    self.send_header('Content-Length', str(len(content)))
                self.end_headers()
                if trouble == 'wrong bytes':
                    content = bytes(len(content))
                if trouble == 'no gzip':
                    content = content[1:] + b'.'
                if trouble == 'trickles':
                    self.trickle()
                    return
                if trouble in ('truncated', 'stalls'):
                    content = content[:len(content) // 2]
                self.wfile.write(content)
                if trouble == 'stalls':
                    owner.stalled.set()
                    owner.closing.wait()
                with contextlib.suppress(OSError):  # the other end was closed
                    while trouble == 'endless' and not owner.closing.is_set():
                        self.wfile.write(bytes(10**5))

            def trickle(self):
                with contextlib.suppress(OSError):  # the other end was closed
                    while not owner.closing.wait(0.1):
                        self.wfile.write(b'H')

            def log_message(self, *args):
                pass

        return Handler

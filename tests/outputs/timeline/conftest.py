"""Fixture that writes traces."""
import json

import pytest
from lanes import LANES


@pytest.fixture
def write_trace(tmp_path):
    """Return a function that writes a trace of (phase letter, pid, tid, name, microseconds) and returns its path."""
    def write(*rows):
        names = [{'ph': 'M', 'pid': pid, 'name': 'process_name', 'args': {'name': name}}
                 for pid, name in LANES.items()]
        records = [dict(zip(('ph', 'pid', 'tid', 'name', 'ts'), row)) for row in rows]
        path = tmp_path / 'trace.json'
        path.write_text(json.dumps({'traceEvents': names + records}))
        return path
    return write

"""Traces of MXNet's profiler, read: what ran on which device, when, and in which phase of the step.

An event is what the engine ran as one piece on a device, and it has no phase, only the names of its operators: the
phase is told from them and from their order on the device, which is right but for a small part of a step:

- ``backward`` in a name is backward, an ``sgd_update`` update; ones are what backward begins with.
- Copies are allreduce once backward has begun on the device, also those that bring new weights; before,
  they bring the batch: other. Sums are allreduce, products and differences update, in the same way.
- ImperativeBulk is operators without their names: the copies at both ends of a hybridized network, the layers of
  one that is not. It counts with what was seen before it on the device.
"""
from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

PHASES = ('forward', 'backward', 'allreduce', 'update', 'other')
LANE = re.compile(r'(cpu|gpu)(/\d+| pinned/| shared/)$')  # the profiler's processes that are devices
BRACES = re.compile(r'\{[^}]*\}?|\]')                     # operator{name=...;...}: MXNet 2 adds attributes
# What means something else before backward, where it brings the batch or is part of the network
ALLREDUCE = re.compile(r'Copy|_npi_add$|_plus|ElementwiseSum$|add_n$|KVStore')
UPDATE = re.compile(r'_npi_subtract$|_npi_multiply_scalar$')


class Event(NamedTuple):
    """What the engine ran as one piece on a device."""

    device: str  # 'cpu(0)', 'gpu(1)'; 'cpu pinned' where it cannot be told whose memory it was
    phase: str  # one of `PHASES`
    start: float  # milliseconds from the first event of the trace
    duration: float  # milliseconds
    name: str  # of its operators


def read(path) -> list[Event]:
    """Read what ran on the devices from a Chrome trace of MXNet's profiler.

    Parameters
    ----------
    path : path-like
        The trace, as `record` and `Timeline` write it.

    Returns
    -------
    list of Event
        At least one, in the order of their beginning.

    Raises
    ------
    ValueError
        If the file is something else, or nothing ran on a device.
    """
    return parse(Path(path).read_bytes(), path)


def parse(trace: str | bytes, path) -> list[Event]:
    """Do what `read` does with the content of a trace; `path` is its name in errors."""
    try:
        events = _events(json.loads(trace)['traceEvents'])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise ValueError(f"{path} is not a Chrome trace of MXNet's profiler: "
                         'give the trace.json that --timeline leaves') from None
    if not events:
        raise ValueError(f'{path} has no event that ran on a device: profile a step that computes')
    return events


def _events(records: list[dict]) -> list[Event]:
    lanes = {r['pid']: r['args']['name'] for r in records if r['ph'] == 'M' and r['name'] == 'process_name'}
    pieces = sorted(_pieces(r for r in records if LANE.match(lanes.get(r.get('pid'), ''))))
    # On CPUs the worker of a context also does that context's copies to pinned memory
    owners = {tid: lanes[pid] for _, _, pid, tid, _ in pieces if lanes[pid][-1].isdigit()}
    events: list[Event] = []
    states: dict[str, str] = {}
    origin = pieces[0][0] if pieces else 0.0
    for start, end, pid, tid, name in pieces:
        lane = lanes[pid] if lanes[pid][-1].isdigit() else owners.get(tid, lanes[pid])
        phase, states[lane] = classify(name, states.get(lane, 'forward'))
        device = re.sub(r'/(\d+)$', r'(\1)', lane).rstrip('/')
        events.append(Event(device, phase, (start - origin) / 1000, (end - start) / 1000, name))
    return events


def _pieces(records: Iterable[dict]) -> Iterator[tuple]:
    """Pair beginnings and ends: (start, end, pid, tid, name), times in microseconds; skip what has only one."""
    begun: dict[tuple, list] = {}
    for r in records:  # not sorted by time: MXNet writes the two records of a piece together
        if r['ph'] in ('B', 'E') and r['name'] != 'DeleteVariable':
            starts = begun.setdefault((r['pid'], r['tid'], r['name']), [])
            if r['ph'] == 'B':
                starts.append(float(r['ts']))
            elif starts:
                start, end = starts.pop(), float(r['ts'])
                if not math.isfinite(end - start):
                    raise ValueError('the times of a piece must be finite')
                yield start, end, r['pid'], r['tid'], r['name']


def classify(name: str, state: str) -> tuple[str, str]:
    """Tell the phase of a piece from its name and the `state` of its device, 'forward' or 'backward'.

    Returns
    -------
    phase : str
        One of `PHASES`.
    state : str
        'backward' from the first backward operators on, until a forward one follows.
    """
    operators = BRACES.sub('', name).split(',')
    if 'backward' in name:
        return 'backward', 'backward'
    if name == 'ImperativeBulk':
        return state, state
    if name == 'SetValueOp':  # the ones that backward begins with; made whenever the device has time
        return 'backward', state
    if all('sgd' in operator for operator in operators):
        return 'update', state
    for phase, pattern in (('allreduce', ALLREDUCE), ('update', UPDATE)):
        if state == 'backward' and all(pattern.match(operator) for operator in operators):
            return phase, state
    if 'Copy' in name:
        return 'other', state
    return 'forward', 'forward'


def step_time(events: list[Event]) -> float:
    """Return the milliseconds from the first event's beginning to the last one's end.

    Parameters
    ----------
    events : list of Event
        At least one.
    """
    return max(e.start + e.duration for e in events)

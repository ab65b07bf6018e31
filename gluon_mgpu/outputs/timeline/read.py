"""Reader for traces of MXNet's profiler: what ran on each device, when, and in which phase of the step.

An event is one piece of work of MXNet's engine. It has the names of its operators but no phase, which is inferred from
the names and their order on the device. That mislabels a small part of a step:

- ``backward`` in a name means backward, ``_update`` at its end update. Backward begins by setting an array to ones,
  which alone shows it where a network runs without static memory: its operators have no names. If the device did so
  before the forward pass, that is backward as well.
- Before backward, copies bring the batch: other. After it has begun on the device, copies and sums are allreduce,
  including copies of new weights; products and differences are update.
- ImperativeBulk is a group of operators without names, such as the layers of a network that is not hybridized. It
  belongs to the phase before it on the device.
"""
from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ...base.files import read_file

MAX_TRACE = 2**26   # bytes
MAX_DEVICES, MAX_EVENTS = 100, 30_000  # in a picture, which takes half a minute then

LANE = re.compile(r'(cpu|gpu)(/\d+| pinned/| shared/)$')  # the profiler's processes that are devices
BRACES = re.compile(r'\{[^}]*\}?|\]')                     # operator{name=...;...}: attributes, added by MXNet 2
# Operators with these meanings only after backward has begun; before, they are part of the network or bring the batch
ALLREDUCE = re.compile(r'Copy|_npi_add$|_plus|ElementwiseSum$|add_n$|KVStore')
UPDATE_OPERATOR = re.compile(r'_update(_phase\d)?$')      # such as multi_sgd_mom_update, lamb_update_phase1
UPDATE = re.compile(r'_npi_subtract$|_npi_multiply_scalar$')


class Event(NamedTuple):
    """One piece of work on a device."""

    device: str  # 'cpu(0)', 'gpu(1)'; 'cpu pinned' if the owner of the memory is unknown
    phase: str  # 'forward', 'backward', 'allreduce', 'update' or 'other'
    start: float  # milliseconds from the first event of the trace
    duration: float  # milliseconds
    name: str  # of its operators


def read(path) -> list[Event]:
    """Read the events of a trace, at least one, in the order of their start; raise ValueError if it has none."""
    return parse(read_file(path, MAX_TRACE), path)


def parse(trace: str | bytes, path) -> list[Event]:
    """Parse the content of a trace, like `read`; `path` is its name in errors."""
    try:
        events = _events(json.loads(trace)['traceEvents'])
        if not all(math.isfinite(e.start + e.duration) for e in events):
            raise ValueError
    except Exception:  # other JSON can raise many types
        raise ValueError(f"{path} is not a Chrome trace of MXNet's profiler: "
                         'give the trace.json that --timeline writes') from None
    if not events:
        raise ValueError(f'{path} contains no operation on a device: record a training step')
    for what, number, most in (('devices', len({e.device for e in events}), MAX_DEVICES),
                               ('operations', len(events), MAX_EVENTS)):
        if number > most:
            raise ValueError(f'{path} has more than {most} {what}, too many for a picture: record one step')
    return events


def _events(records: list[dict]) -> list[Event]:
    lanes = {r['pid']: r['args']['name'] for r in records if r['ph'] == 'M' and r['name'] == 'process_name'}
    pieces = sorted(_pieces(r for r in records if LANE.match(lanes.get(r.get('pid'), ''))))
    # A CPU context's worker thread also makes that context's copies to pinned memory
    owners = {tid: lanes[pid] for _, _, pid, tid, _ in pieces if lanes[pid][-1].isdigit()}
    lanes_of = [lanes[pid] if lanes[pid][-1].isdigit() else owners.get(tid, lanes[pid]) for _, _, pid, tid, _ in pieces]
    named = {lane for lane, (*_, name) in zip(lanes_of, pieces) if 'backward' in name}
    signs = ['backward' if lane in named else 'SetValueOp' for lane in lanes_of]
    last_signs = {lane: start for lane, sign, (start, *_, name) in zip(lanes_of, signs, pieces) if sign in name}
    events: list[Event] = []
    states: dict[str, str] = {}
    for lane, sign, (start, end, _, _, name) in zip(lanes_of, signs, pieces):
        phase, state = classify(name, states.get(lane, 'forward'))
        if start <= last_signs.get(lane, start):  # a loss may be computed after its gradient
            states[lane] = 'backward' if sign in name else state
        device = re.sub(r'/(\d+)$', r'(\1)', lane).rstrip('/')
        events.append(Event(device, phase, (start - pieces[0][0]) / 1000, (end - start) / 1000, name))
    return events


def _pieces(records: Iterable[dict]) -> Iterator[tuple]:
    """Pair starts and ends: (start, end, pid, tid, name) in microseconds. Skip records without a partner."""
    unpaired: dict[tuple, list] = {}
    for r in records:  # not sorted by time: MXNet writes the two records of a piece together
        if r['ph'] in ('B', 'E') and r['name'] != 'DeleteVariable':
            starts = unpaired.setdefault((r['pid'], r['tid'], r['name']), [])
            if r['ph'] == 'B':
                starts.append(float(r['ts']))
            elif starts:
                yield starts.pop(), float(r['ts']), r['pid'], r['tid'], r['name']


def classify(name: str, state: str) -> tuple[str, str]:
    """Infer the phase of a piece from its name and the state of its device; return the phase and the new state."""
    # The state is 'backward' from the first backward operator until the next forward one, else 'forward'
    operators = BRACES.sub('', name).split(',')
    if 'backward' in name:
        return 'backward', 'backward'
    if name == 'ImperativeBulk':
        return state, state
    if name == 'SetValueOp':  # the ones that backward begins with; may run earlier, when the device has time
        return 'backward', state
    if all(UPDATE_OPERATOR.search(operator) for operator in operators):
        return 'update', state
    for phase, pattern in (('allreduce', ALLREDUCE), ('update', UPDATE)):
        if state == 'backward' and all(pattern.match(operator) for operator in operators):
            return phase, state
    if 'Copy' in name:
        return 'other', state
    return 'forward', 'forward'


def step_time(events: list[Event]) -> float:
    """Return the milliseconds from the first event's start to the last one's end."""
    return max(e.start + e.duration for e in events)

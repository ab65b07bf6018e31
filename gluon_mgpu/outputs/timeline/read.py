"""Reader for traces of MXNet's profiler: what ran on each device, when, and in which phase of the step.

An event is one piece of work of MXNet's engine. It has the names of its operators but no phase, which is inferred from
the names, and from whether the backward pass has begun on the device. That mislabels a small part of a step:

- ``backward`` in a name means backward, ``_update`` at its end update. Backward begins by setting an array to ones,
  which alone shows it where a network runs without static memory: its operators have no names.
- Before backward, copies bring the batch: other. After it has begun, copies and sums are allreduce, including copies of
  new weights; products and differences are update.
- ImperativeBulk is a group of operators without names, such as the layers of a network that is not hybridized.
"""
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ...base.files import read_file

LANE = re.compile(r'(cpu|gpu)(/\d+| pinned/| shared/)$')  # the profiler's processes that are devices
BRACES = re.compile(r'\{[^}]*\}?|\]')                     # operator{name=...;...}: attributes, added by MXNet 2
UPDATE_OPERATOR = re.compile(r'.*_update(_phase\d)?$')    # such as multi_sgd_mom_update, lamb_update_phase1
# Operators with these meanings only after backward has begun; before, they are part of the network or bring the batch
ALLREDUCE = re.compile(r'Copy|_npi_add$|_plus|ElementwiseSum$|add_n$|KVStore')
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
    return parse(read_file(path), path)


def parse(trace: str | bytes, path) -> list[Event]:
    """Parse the content of a trace, like `read`; `path` is its name in errors."""
    try:
        events = _events(json.loads(trace)['traceEvents'])
    except Exception:  # other JSON can raise many types
        raise ValueError(f"{path} is not a Chrome trace of MXNet's profiler: "
                         'give the trace.json that --timeline writes') from None
    if not events:
        raise ValueError(f'{path} contains no operation on a device: record a training step')
    return events


def _events(records: list[dict]) -> list[Event]:
    # 1. The profiler calls a device a process, and names it in a record of its own
    lanes = {r['pid']: r['args']['name'] for r in records
             if r['ph'] == 'M' and r['name'] == 'process_name' and LANE.match(r['args']['name'])}
    pieces = sorted(_pieces((r for r in records if r['ph'] in ('B', 'E') and r['pid'] in lanes), lanes))
    # 2. A CPU context's worker thread also makes that context's copies to pinned memory, which has a lane of its own
    owners = {thread: lane for _, _, lane, thread, _ in pieces if lane[-1].isdigit()}
    on_device = defaultdict(list)
    for start, end, lane, thread, name in pieces:
        on_device[lane if lane[-1].isdigit() else owners.get(thread, lane)].append((start, end, name))
    # 3. Each device has its own order of phases
    events = []
    for lane, its_pieces in on_device.items():
        device = re.sub(r'/(\d+)$', r'(\1)', lane).rstrip('/')
        phases = infer_phases([name for _, _, name in its_pieces])
        for phase, (start, end, name) in zip(phases, its_pieces):
            events.append(Event(device, phase, (start - pieces[0][0]) / 1000, (end - start) / 1000, name))
    return sorted(events, key=lambda event: event.start)


def _pieces(records: Iterable[dict], lanes: dict) -> Iterator[tuple[float, float, str, int, str]]:
    """Pair the beginnings and ends of pieces of work: yield both in microseconds, the lane, the thread and the name."""
    unpaired = defaultdict(list)
    for r in records:  # not sorted by time: MXNet writes the two records of a piece together
        key = lanes[r['pid']], r['tid'], r['name']
        if r['ph'] == 'B':
            unpaired[key].append(float(r['ts']))
        elif unpaired[key] and r['name'] != 'DeleteVariable':
            yield unpaired[key].pop(), float(r['ts']), *key


def infer_phases(names: list[str]) -> list[str]:
    """Return the phase of each piece of work on a device, from the names in the order of time."""
    sign = 'backward' if any('backward' in name for name in names) else 'SetValueOp'
    begin = next((number for number, name in enumerate(names) if sign in name), len(names))
    return [_phase(name, number >= begin) for number, name in enumerate(names)]


def _phase(name: str, backward_has_begun: bool) -> str:
    operators = BRACES.sub('', name).split(',')
    if 'backward' in name or name == 'SetValueOp':
        return 'backward'
    if all(map(UPDATE_OPERATOR.match, operators)):
        return 'update'
    if backward_has_begun:
        if name == 'ImperativeBulk':
            return 'backward'
        if all(map(ALLREDUCE.match, operators)):
            return 'allreduce'
        if all(map(UPDATE.match, operators)):
            return 'update'
    return 'other' if 'Copy' in name else 'forward'


def step_time(events: list[Event]) -> float:
    """Return the milliseconds from the first event's start to the last one's end, at least a microsecond."""
    return max(0.001, *(e.start + e.duration for e in events))

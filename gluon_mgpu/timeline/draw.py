"""One training step as MXNet's profiler sees it: a lane a device, forward, backward, allreduce and update.

    python -m gluon_mgpu.scratch --timeline            # leaves trace.json and timeline.png
    python -m gluon_mgpu.timeline TRACE.json --out PNG

The trace is a Chrome trace: chrome://tracing and ui.perfetto.dev show it, too. An event is what the engine
ran as one piece on a device, and it has no phase, only the names of its operators: the phase is told from
them and from their order on the device, which is right but for a small part of a step:

- ``backward`` in a name is backward, an ``sgd_update`` update; ones are what backward begins with.
- Copies are allreduce once backward has begun on the device, also those that bring new weights; before,
  they bring the batch: other. Sums are allreduce, products and differences update, in the same way.
- ImperativeBulk is operators without their names: the copies at both ends of a hybridized network, the layers of
  one that is not. It counts with what was seen before it on the device.
"""
from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

COLORS = {'forward': 'tab:blue', 'backward': 'tab:orange', 'allreduce': 'tab:red', 'update': 'tab:green',
          'other': 'tab:gray'}
LANE = re.compile(r'(cpu|gpu)(/\d+| pinned/| shared/)$')  # the profiler's processes that are devices
BRACES = re.compile(r'\{[^}]*\}?|\]')                     # operator{name=...;...}: MXNet 2 adds attributes
# What means something else before backward, where it brings the batch or is part of the network
ALLREDUCE = re.compile(r'Copy|_npi_add$|_plus|ElementwiseSum$|add_n$|KVStore')
UPDATE = re.compile(r'_npi_subtract$|_npi_multiply_scalar$')


class Event(NamedTuple):
    """What the engine ran as one piece on a device."""

    device: str  # 'cpu(0)', 'gpu(1)'; 'cpu pinned' where it cannot be told whose memory it was
    phase: str  # one of `COLORS`
    start: float  # milliseconds from the first event of the trace
    duration: float  # milliseconds
    name: str  # of its operators


def read(path) -> list[Event]:
    """Read what ran on the devices from a Chrome trace of MXNet's profiler, in the order of its beginning.

    Raises
    ------
    ValueError
        If the file is something else, or nothing ran on a device.
    """
    try:
        records = json.loads(Path(path).read_text())['traceEvents']
        lanes = {r['pid']: r['args']['name'] for r in records if r['ph'] == 'M' and r['name'] == 'process_name'}
        pieces = sorted(_pieces([r for r in records if LANE.match(lanes.get(r.get('pid'), ''))]))
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ValueError(f"{path} is not a Chrome trace of MXNet's profiler: "
                         'give the trace.json that --timeline leaves') from None
    if not pieces:
        raise ValueError(f'{path} has no event that ran on a device: profile a step that computes')
    # On CPUs the worker of a context also does that context's copies to pinned memory
    owners = {tid: lanes[pid] for _, _, pid, tid, _ in pieces if lanes[pid][-1].isdigit()}
    events, states, origin = [], {}, pieces[0][0]
    for start, end, pid, tid, name in pieces:
        lane = lanes[pid] if lanes[pid][-1].isdigit() else owners.get(tid, lanes[pid])
        phase, states[lane] = classify(name, states.get(lane, 'forward'))
        device = re.sub(r'/(\d+)$', r'(\1)', lane).rstrip('/')
        events.append(Event(device, phase, (start - origin) / 1000, (end - start) / 1000, name))
    return events


def _pieces(records) -> Iterator[tuple]:
    """Pair beginnings and ends: (start, end, pid, tid, name), times in microseconds; skip what has only one."""
    begun: dict[tuple, list] = {}
    for r in records:  # not sorted by time: MXNet writes the two records of a piece together
        if r['ph'] in ('B', 'E') and r['name'] != 'DeleteVariable':
            starts = begun.setdefault((r['pid'], r['tid'], r['name']), [])
            if r['ph'] == 'B':
                starts.append(float(r['ts']))
            elif starts:
                yield starts.pop(), float(r['ts']), r['pid'], r['tid'], r['name']


def classify(name: str, state: str) -> tuple:
    """Tell the phase of a piece from its name and the `state` of its device, 'forward' or 'backward'.

    Returns
    -------
    phase : str
        One of `COLORS`.
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


def busy_shares(events: list[Event]) -> dict[str, float]:
    """The share of the time, from the first event to the last one's end, in which something ran; by device."""
    end = max(e.start + e.duration for e in events)
    busy, until = dict.fromkeys(sorted(e.device for e in events), 0.0), {}
    for e in sorted(events, key=lambda e: e.start):  # pieces on one device may overlap, as copies on GPUs do
        begin = max(e.start, until.get(e.device, 0.0))
        until[e.device] = max(begin, e.start + e.duration)
        busy[e.device] += until[e.device] - begin
    return {device: time / end if end else 0.0 for device, time in busy.items()}


def draw(events: list[Event], path, title: str) -> None:
    """Draw events as PNG: a lane a device, a colour a phase, at the right the share of time it is busy.

    Parameters
    ----------
    events : list of Event
        At least one. Very short ones are drawn a little longer, so that they can be seen.
    path : path-like
        The file to write.
    title : str
        What was trained, on which data and devices.
    """
    from matplotlib.figure import Figure
    shares = busy_shares(events)
    end = max(e.start + e.duration for e in events) or 1e-3
    fig = Figure(figsize=(9, max(3, 1.2 + 0.6 * len(shares))), dpi=120, layout='constrained')
    axes = fig.subplots()
    for phase in [p for p in COLORS if any(e.phase == p for e in events)]:
        bars = [(e, list(shares).index(e.device)) for e in events if e.phase == phase]
        axes.barh([lane for _, lane in bars], [max(e.duration, end / 800) for e, _ in bars],
                  left=[e.start for e, _ in bars], color=COLORS[phase], label=phase,
                  zorder=2 if phase == 'allreduce' else 1)  # often too short to be seen beside the update
    for lane, share in enumerate(shares.values()):
        axes.annotate(f'{share:.0%} busy', (1, lane), xycoords=('axes fraction', 'data'), xytext=(6, 0),
                      textcoords='offset points', va='center')
    axes.set(title=title, xlabel='milliseconds from the first operation of the step', xlim=(0, end * 1.002),
             ylim=(len(shares) - 0.4, -0.6), yticks=range(len(shares)), yticklabels=shares)
    fig.legend(loc='outside lower center', ncols=len(COLORS), frameon=False)
    fig.savefig(path)


def main(argv: list | None = None) -> int:
    """The command line: ``python -m gluon_mgpu.timeline --help``. Returns the exit status."""
    parser = argparse.ArgumentParser(prog='python -m gluon_mgpu.timeline',
                                     description="Draw a Chrome trace of MXNet's profiler, a lane a device.")
    parser.add_argument('trace', metavar='TRACE.json', help='the trace, as --timeline of a chapter leaves it')
    parser.add_argument('--out', metavar='PNG', help='the picture to write (default: beside the trace, .png)')
    parser.add_argument('--title', help="the picture's heading (default: the name of the trace)")
    args = parser.parse_args(argv)
    out = args.out or Path(args.trace).with_suffix('.png')
    try:
        draw(read(args.trace), out, args.title or Path(args.trace).name)
    except (ValueError, OSError) as error:
        print(f'timeline: {error}', file=sys.stderr)
        return 2
    print(f'picture: {out}')
    return 0


if __name__ == '__main__':
    sys.exit(main())

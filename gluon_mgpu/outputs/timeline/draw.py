"""Drawing of a timeline: one lane per device, one colour per phase. Imports matplotlib on first use."""
from __future__ import annotations

import argparse
from pathlib import Path

from ...base.files import check_writable
from ...base.flags import Parser, path, picture
from ...base.pictures import in_lines, matplotlib_defaults, write_picture
from ...base.text import print_text
from .read import Event, read, step_time

COLORS = {'forward': 'tab:blue', 'backward': 'tab:orange', 'allreduce': 'tab:red', 'update': 'tab:green',
          'other': 'tab:gray'}


def busy_shares(events: list[Event]) -> dict[str, float]:
    """Return for each device, in order, the share of the step's time in which something ran on it."""
    whole = step_time(events)
    busy = dict.fromkeys(sorted({e.device for e in events}, key=lambda name: (name[:3], len(name), name)), 0.0)
    until: dict[str, float] = {}
    for e in sorted(events, key=lambda e: e.start):  # events on one device may overlap, such as copies on GPUs
        begin = max(e.start, until.get(e.device, 0.0))
        until[e.device] = max(begin, e.start + e.duration)
        busy[e.device] += until[e.device] - begin
    return {device: time / whole if whole else 0.0 for device, time in busy.items()}


@matplotlib_defaults()
def draw(events: list[Event], path, title: str) -> None:
    """Draw events into a picture, very short ones a little longer, with the share of time that each device is busy."""
    from matplotlib.figure import Figure
    shares = busy_shares(events)
    whole = step_time(events) or 1e-3
    fig = Figure(figsize=(9, max(3, 1.2 + 0.6 * len(shares))), dpi=120, layout='constrained')
    axes = fig.subplots()
    for phase in [p for p in COLORS if any(e.phase == p for e in events)]:
        bars = [(e, list(shares).index(e.device)) for e in events if e.phase == phase]
        axes.barh([lane for _, lane in bars], [max(e.duration, whole / 800) for e, _ in bars],
                  left=[e.start for e, _ in bars], color=COLORS[phase], label=phase,
                  zorder=2 if phase == 'allreduce' else 1)  # often hidden by the update otherwise
    for lane, share in enumerate(shares.values()):
        axes.annotate(f'{share:.0%} busy', (1, lane), xycoords=axes.get_yaxis_transform(), xytext=(6, 0),
                      textcoords='offset points', va='center')
    axes.set_title(in_lines(title, 90))  # can list many devices
    axes.set(xlabel='milliseconds from the first operation', xlim=(0, whole * 1.002),
             ylim=(len(shares) - 0.4, -0.6), yticks=range(len(shares)), yticklabels=shares)
    fig.legend(loc='outside lower center', ncols=len(COLORS), frameon=False)
    write_picture(fig, path)


def main(argv: list | None = None) -> int:
    """Run the command line ``python -m gluon_mgpu timeline``; return the exit status."""
    parser = Parser('gluon_mgpu timeline', "Draw a Chrome trace of MXNet's profiler, one lane per device.")
    parser.add_argument('trace', type=path, metavar='TRACE.json', help='trace written by a chapter with --timeline')
    parser.add_argument('--out', type=picture, metavar='FILE',
                        help='the picture to write (default: beside the trace, .png)')
    parser.add_argument('--title', help='title of the picture (default: the name of the trace)')
    return parser.run(argv, _run)


def _run(args: argparse.Namespace) -> None:
    trace = Path(args.trace)
    out = args.out or trace.with_suffix('.png')
    check_writable(out)
    draw(read(trace), out, args.title or trace.name)
    print_text(f'picture: {out}')

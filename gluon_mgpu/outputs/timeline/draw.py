"""Drawing of a timeline: one lane per device, one colour per phase. Imports matplotlib on first use."""
import argparse
from pathlib import Path

from ...base.flags import Parser, path, picture
from ...base.pictures import in_lines, matplotlib_defaults, write_picture
from ...base.text import print_text
from .read import Event, read, step_time

# In the order of drawing: the update would often hide the allreduce
COLORS = {'forward': 'tab:blue', 'backward': 'tab:orange', 'update': 'tab:green', 'other': 'tab:gray',
          'allreduce': 'tab:red'}


def busy_shares(events: list[Event]) -> dict[str, float]:
    """Return for each device, in order, the share of the step's time in which something ran on it."""
    busy = dict.fromkeys(sorted({e.device for e in events}, key=lambda name: (name[:3], len(name), name)), 0.0)
    until: dict[str, float] = {}
    for e in events:  # in the order of their start; they may overlap, such as copies on GPUs
        begin = max(e.start, until.get(e.device, 0.0))
        until[e.device] = max(begin, e.start + e.duration)
        busy[e.device] += until[e.device] - begin
    return {device: time / step_time(events) for device, time in busy.items()}


@matplotlib_defaults()
def draw_timeline(events: list[Event], path, title: str) -> None:
    """Draw events, in the order of their start, very short ones a little longer, and how busy each device is."""
    from matplotlib.figure import Figure
    shares, whole = busy_shares(events), step_time(events)
    lanes = list(shares)
    fig = Figure(figsize=(9, max(3, 1.2 + 0.6 * len(shares))), dpi=120, layout='constrained')
    axes = fig.subplots()
    for phase, color in COLORS.items():
        if bars := [e for e in events if e.phase == phase]:
            axes.barh([lanes.index(e.device) for e in bars], [max(e.duration, whole / 800) for e in bars],
                      left=[e.start for e in bars], color=color, label=phase)
    for lane, share in enumerate(shares.values()):
        axes.annotate(f'{share:.0%} busy', (1, lane), xycoords=axes.get_yaxis_transform(), xytext=(6, 0),
                      textcoords='offset points', va='center')
    axes.set_title(in_lines(title, 90))  # can list many devices
    axes.set(xlabel='milliseconds from the first operation', xlim=(0, whole * 1.002),
             ylim=(len(lanes) - 0.4, -0.6), yticks=range(len(lanes)), yticklabels=lanes)
    fig.legend(loc='outside lower center', ncols=len(COLORS), frameon=False)
    write_picture(fig, path)


def main(argv: list | None = None) -> int:
    """Run the command line ``python -m gluon_mgpu timeline``; return the exit status."""
    parser = Parser('gluon_mgpu timeline', "Draw a Chrome trace of MXNet's profiler, one lane per device.")
    parser.add_argument('trace', type=path, metavar='TRACE.json', help='trace written by a chapter with --timeline')
    parser.add_argument('--out', type=picture, metavar='FILE',
                        help='the picture to write (default: beside the trace, .png)')
    return parser.run(argv, _run)


def _run(args: argparse.Namespace) -> None:
    trace = Path(args.trace)
    out = args.out or trace.with_suffix('.png')
    draw_timeline(read(trace), out, trace.name)
    print_text(f'picture: {out}')

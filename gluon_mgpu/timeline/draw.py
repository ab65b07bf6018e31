"""A step as a picture: one lane per device, one colour per phase. Matplotlib is loaded when it is drawn."""
from __future__ import annotations

import re

from .read import Event, step_time

COLORS = {'forward': 'tab:blue', 'backward': 'tab:orange', 'allreduce': 'tab:red', 'update': 'tab:green',
          'other': 'tab:gray'}


def busy_shares(events: list[Event]) -> dict[str, float]:
    """Return the share of the step's time in which something ran on a device, in the order of the devices.

    Parameters
    ----------
    events : list of Event
        At least one.
    """
    whole = step_time(events)
    busy = dict.fromkeys(sorted({e.device for e in events}, key=_by_number), 0.0)
    until: dict[str, float] = {}
    for e in sorted(events, key=lambda e: e.start):  # pieces on one device may overlap, as copies on GPUs do
        begin = max(e.start, until.get(e.device, 0.0))
        until[e.device] = max(begin, e.start + e.duration)
        busy[e.device] += until[e.device] - begin
    return {device: time / whole if whole else 0.0 for device, time in busy.items()}


def _by_number(device: str) -> list:
    """'gpu(10)' -> ['gpu(', 10, ')'], which comes after gpu(9)"""
    return [int(part) if part.isdigit() else part for part in re.split(r'(\d+)', device)]


def draw(events: list[Event], path, title: str) -> None:
    """Draw events as PNG: one lane per device, one colour per phase, at the right the share of time it is busy.

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
    whole = step_time(events) or 1e-3
    fig = Figure(figsize=(9, max(3, 1.2 + 0.6 * len(shares))), dpi=120, layout='constrained')
    axes = fig.subplots()
    for phase in [p for p in COLORS if any(e.phase == p for e in events)]:
        bars = [(e, list(shares).index(e.device)) for e in events if e.phase == phase]
        axes.barh([lane for _, lane in bars], [max(e.duration, whole / 800) for e, _ in bars],
                  left=[e.start for e, _ in bars], color=COLORS[phase], label=phase,
                  zorder=2 if phase == 'allreduce' else 1)  # often too short to be seen beside the update
    for lane, share in enumerate(shares.values()):
        axes.annotate(f'{share:.0%} busy', (1, lane), xycoords=axes.get_yaxis_transform(), xytext=(6, 0),
                      textcoords='offset points', va='center')
    axes.set_title(title, wrap=True)  # it may list many devices
    axes.set(xlabel='milliseconds from the first operation of the step', xlim=(0, whole * 1.002),
             ylim=(len(shares) - 0.4, -0.6), yticks=range(len(shares)), yticklabels=shares)
    fig.legend(loc='outside lower center', ncols=len(COLORS), frameon=False)
    fig.savefig(path)

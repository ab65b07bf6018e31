"""Results of the comparison: medians, ratios, a text table and a chart."""
from __future__ import annotations

import statistics

FULL_EPOCH = 60_000  # rows of Fashion-MNIST; seconds per epoch are scaled to this number
COLUMNS = (  # heading, and the function that formats a summary
    ('s/epoch', lambda s: f'{s["epoch_seconds"]:.2f}'),
    ('from-to', lambda s: f'{s["fastest"]:.2f}-{s["slowest"]:.2f}'),
    ('images/s', lambda s: f'{s["images_per_second"]:,.0f}'),
    ('GFLOP/s', lambda s: '-' if s['gflops'] is None else f'{s["gflops"]:.0f}'),
    ('x ours', lambda s: '-' if s['ratio'] is None else f'{s["ratio"]:.2f}'),
    ('1st epoch', lambda s: f'{s["first_epoch_seconds"]:.1f}'),
    ('whole job', lambda s: f'{s["job_seconds"]:.1f}'),
    ('cores', lambda s: f'{s["cores_busy"]:.2f}'),
    ('MB', lambda s: f'{s["peak_mb"]:,.0f}'),
    ('loss', lambda s: f'{s["loss"]:.3f}'),
    ('acc', lambda s: f'{s["test_acc"]:.3f}'),
)


def summarize(runs: list, uncounted: int = 1) -> dict:
    """Summarize one contender's runs.

    Parameters
    ----------
    runs : list of dict
        From `process.run`; at least one, each with more than `uncounted` epochs.
    uncounted : int
        Epochs at the beginning of each run in which a contender may compile or still get faster.

    Returns
    -------
    dict
        ``epoch_seconds``, ``fastest``, ``slowest``: median and extremes of the counted epochs of all runs, scaled to
        `FULL_EPOCH` rows. The rest are medians over the runs, not scaled.
    """
    scale = FULL_EPOCH / runs[0]['rows']
    steady = [seconds * scale for run in runs for seconds in run['epoch_seconds'][uncounted:]]
    summary = {name: statistics.median(run[name] for run in runs)
               for name in ('job_seconds', 'cores_busy', 'peak_mb', 'loss', 'test_acc')}
    median = statistics.median(steady)
    return {**summary, 'epoch_seconds': median, 'fastest': min(steady), 'slowest': max(steady),
            'images_per_second': FULL_EPOCH / median, 'rounds': len(runs),
            'first_epoch_seconds': statistics.median(run['epoch_seconds'][0] for run in runs)}


def compare(runs_of: dict, reference: str, mflop: dict | None = None, uncounted: int = 1) -> dict:
    """Return summaries by name with ``ratio``, the time relative to the reference, and ``gflops``.

    `mflop` has the number of operations per image in millions by name. Contenders without runs are left out. Without
    the reference, every ratio is None; without `mflop`, every rate is None.
    """
    summaries = {name: summarize(runs, uncounted) for name, runs in runs_of.items() if runs}
    ours = summaries.get(reference)
    for name, summary in summaries.items():
        summary['gflops'] = summary['images_per_second'] * mflop[name] / 1000 if mflop else None
        summary['ratio'] = summary['epoch_seconds'] / ours['epoch_seconds'] if ours else None
    return summaries


def table(title: str, summaries: dict) -> str:
    """Return the summaries of one work as text, one aligned line per contender."""
    rows = [['', *(heading for heading, _ in COLUMNS)]]
    rows += [[name, *(text(summary) for _, text in COLUMNS)] for name, summary in summaries.items()]
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = [f'{row[0]:<{widths[0]}}  ' + '  '.join(f'{cell:>{w}}' for cell, w in zip(row[1:], widths[1:]))
             for row in rows]
    return '\n'.join([title, *lines])


def chart(tables: dict, path, caption: str) -> None:
    """Draw images/s as bars, one panel per work, and write a PNG file.

    Parameters
    ----------
    tables : dict
        Title of the work -> summaries by name; at least one contender in total.
    path : path-like
        The file to write.
    caption : str
        Text below the chart, such as the machine.
    """
    from matplotlib.figure import Figure
    tables = {title: summaries for title, summaries in tables.items() if summaries}
    heights = [len(summaries) + 1.5 for summaries in tables.values()]
    fig = Figure(figsize=(8, 0.36 * sum(heights) + 0.6), dpi=120, layout='constrained')
    panels = fig.subplots(len(tables), 1, squeeze=False, gridspec_kw={'height_ratios': heights})[:, 0]
    for axes, (title, summaries) in zip(panels, tables.items()):
        speeds = [s['images_per_second'] for s in summaries.values()]
        spread = [[speed - FULL_EPOCH / s['slowest'], FULL_EPOCH / s['fastest'] - speed]
                  for speed, s in zip(speeds, summaries.values())]
        colors = ['tab:blue' if name.startswith('ours') else 'tab:gray' for name in summaries]
        axes.barh(list(summaries), speeds, xerr=list(zip(*spread)), color=colors, height=0.65,
                  error_kw={'capsize': 3, 'elinewidth': 1})
        for i, (speed, (_, above)) in enumerate(zip(speeds, spread)):
            axes.annotate(f'{speed:,.0f}', (speed + above, i), xytext=(4, 0), textcoords='offset points',
                          va='center')
        axes.set_title(title.partition(';')[0], fontsize=10, loc='left')
        axes.set_xlim(0, max(s + above for s, (_, above) in zip(speeds, spread)) * 1.12)
        axes.invert_yaxis()
        axes.grid(axis='x', alpha=0.4)
        axes.set_axisbelow(True)
    panels[-1].set_xlabel(f'training images/s, median; lines: slowest and fastest epoch\n{caption}', fontsize=8)
    fig.savefig(path)

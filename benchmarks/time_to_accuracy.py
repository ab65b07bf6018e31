"""Time to accuracy: epochs and seconds of training until runs reach given test accuracies, as a table and a picture.

    flags="--dtype bfloat16 --dataset fashion-mnist --data-dir DIR --devices cpu:0,cpu:1 --resume auto"
    for seed in 0 1; do                                              # a few hours on 2 cores; repeat it to resume
      python -m gluon_mgpu.concise $flags --seed $seed --out-dir runs/book-$seed
      python -m gluon_mgpu.concise $flags --seed $seed --out-dir runs/cosine-$seed \\
          --momentum 0.9 --weight-decay 5e-4 --warmup-epochs 1 --lr-schedule cosine
    done
    python benchmarks/time_to_accuracy.py runs/book-* runs/cosine-*

Reads config.json and history.csv of each run. Runs with the same settings but other seeds have one colour. Seconds are
those of training, without evaluation.
"""
import argparse
import csv
import itertools
import json
import sys
from pathlib import Path

from matplotlib.figure import Figure

SETTINGS = {'dtype': '', 'batch_size': 'batch ', 'lr': 'rate ', 'momentum': 'momentum ',
            'weight_decay': 'weight decay ', 'warmup_epochs': 'warm-up ', 'lr_schedule': '', 'accumulate': 'parts '}


def read(folder):
    """Return a label for the settings of a run, its seed, and after each epoch: seconds so far, test accuracy."""
    config = json.loads((folder / 'config.json').read_text())
    with open(folder / 'history.csv', newline='') as file:
        history = [(float(row['seconds']), float(row['test_acc'])) for row in csv.DictReader(file)]
    shown = {name: config.get(name) for name in SETTINGS}
    if shown['accumulate'] == 1:
        del shown['accumulate']
    label = ', '.join(f'{SETTINGS[name]}{value}' for name, value in shown.items() if value)
    points = zip(itertools.accumulate(seconds for seconds, _ in history), (accuracy for _, accuracy in history))
    return label, config['seed'], list(points)


def reached(points, accuracy):
    """Return (epochs, seconds) until the test accuracy was first reached, None if it never was."""
    return next(((epoch, seconds) for epoch, (seconds, found) in enumerate(points, 1) if found >= accuracy), None)


def table(runs, accuracies):
    """Return the lines of a table in Markdown."""
    lines = ['| settings | seed | ' + ' | '.join(f'to {accuracy}' for accuracy in accuracies) + ' | best |',
             '|---|---|' + '---|' * (len(accuracies) + 1)]
    for label, seed, points in runs:
        found = [reached(points, accuracy) for accuracy in accuracies]
        cells = ['never' if at is None else f'{at[0]} {"epoch" if at[0] == 1 else "epochs"}, {at[1]:,.0f} s'
                 for at in found]
        best = max(accuracy for _, accuracy in points)
        lines.append(f'| {label} | {seed} | {" | ".join(cells)} | {best:.4f} in {len(points)} epochs |')
    return lines


def draw(runs, accuracies, path):
    """Draw test accuracy over seconds of training."""
    fig = Figure(figsize=(6.4, 3.6), dpi=120, layout='tight')
    axes = fig.subplots()
    colours = {label: f'C{i}' for i, label in enumerate(dict.fromkeys(label for label, *_ in runs))}
    for label, _, points in runs:
        unused = label not in axes.get_legend_handles_labels()[1]
        axes.plot(*zip(*points), 'o-', markersize=3, color=colours[label], label=label if unused else None)
    for accuracy in accuracies:
        axes.axhline(accuracy, color='grey', linewidth=0.5)
    lowest = min(accuracies) - 0.1
    axes.set(xlabel='seconds of training', ylabel='test accuracy (share)', ylim=(lowest, max(accuracies) + 0.02))
    axes.legend(loc='lower right', fontsize='x-small')
    fig.savefig(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     allow_abbrev=False)
    parser.add_argument('runs', nargs='+', type=Path, metavar='RUN', help='folder of a run')
    parser.add_argument('--accuracies', nargs='+', type=float, default=[0.90, 0.92, 0.93], metavar='ACC',
                        help='(default: %(default)s)')
    parser.add_argument('--out', default='time_to_accuracy.png', metavar='PNG', help='(default: %(default)s)')
    args = parser.parse_args()
    runs = []
    for folder, run in zip(args.runs, map(read, args.runs)):
        if run[-1]:
            runs.append(run)
        else:
            print(f'{folder}: left out, because no epoch is complete', file=sys.stderr)
    if not runs:
        parser.error('none of these runs has a complete epoch')
    print('\n'.join(table(runs, args.accuracies)))
    draw(runs, args.accuracies, args.out)


if __name__ == '__main__':
    main()

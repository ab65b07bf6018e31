"""Plots: their contents, and their display in notebooks."""
import json
import os
import shutil
import subprocess
import sys
import types
from pathlib import Path

import new_process
import pytest

from gluon_mgpu.outputs import plot
from gluon_mgpu.outputs.plot import Animator, accuracy_curve
from gluon_mgpu.training.history import EpochResult, write_history

CONFIG = {'chapter': 'scratch', 'dataset': 'glyphs', 'devices': ['cpu(0)'], 'batch_size': 256, 'num_epochs': 10}
HISTORY = [EpochResult(1, 2.0, 1.5, 0.4, 100.0), EpochResult(2, 2.1, 0.9, 0.7, 98.0)]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_animator_takes_several_lines_and_gaps():
    animator = Animator(legend=['train', 'test'])
    animator.add(1, (0.5, None))
    animator.add(2, (0.6, 0.7))
    animator.add(3, 0.65)
    assert animator.X == [[1, 2, 3], [2]]
    assert animator.Y == [[0.5, 0.6, 0.65], [0.7]]


def test_animator_draws_live_in_a_notebook(monkeypatch):
    monkeypatch.setattr('matplotlib.backend_bases.FigureCanvasBase._fix_ipython_backend2gui', lambda *args: None,
                        raising=False)  # older Matplotlib needs more than the fake IPython below
    shown, updated = [], []
    handle = types.SimpleNamespace(update=updated.append)
    display = types.SimpleNamespace(Image=bytes, display=lambda image, display_id: shown.append(image) or handle)
    shell = types.SimpleNamespace(config={'IPKernelApp': {}})
    ipython = types.SimpleNamespace(display=display, get_ipython=lambda: shell, version_info=(9, 0))
    monkeypatch.setitem(sys.modules, 'IPython', ipython)
    animator = Animator('epoch', 'test acc', legend=['a'], xlim=[1, 10])
    animator.add(1, (0.5,))
    animator.add(2, (0.75,))
    assert len(shown) == len(updated) == 1 and shown != updated
    assert all(image.startswith(b'\x89PNG\r\n') for image in shown + updated)
    axes = animator.axes[0]
    assert axes.lines[0].get_xydata().tolist() == [[1, 0.5], [2, 0.75]]
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_xlim()) == ('epoch', 'test acc', (1, 10))
    assert [t.get_text() for t in axes.get_legend().get_texts()] == ['a']


def test_figure_and_axes_exist_from_the_start():
    """The book's GAN and style transfer draw images in the second axes, which stay when lines are drawn."""
    animator = Animator(nrows=2, figsize=(5, 5))
    animator.fig.subplots_adjust(hspace=0.3)
    image = animator.axes[1].imshow([[0, 1]])
    animator.add(1, 2)
    animator.draw()
    assert animator.fig.axes == list(animator.axes) and image in animator.axes[1].get_children()
    assert animator.fig.get_size_inches().tolist() == [5, 5] and len(animator.axes[0].lines) == 1


def test_steps_are_whole_numbers():
    animator = Animator('step', xlim=[0, 20])
    for step in range(21):
        animator.add(step, step)
    animator.draw()
    assert (animator.axes[0].get_xticks() % 1 == 0).all()


def test_accuracy_curve(figures):
    accuracy_curve(HISTORY, 'accuracy.png', 'LeNet on glyphs')
    assert Path('accuracy.png').read_bytes()[:8] == b'\x89PNG\r\n\x1a\n'
    above, below = figures[0].axes
    assert above.get_title() == 'LeNet on glyphs'
    assert above.lines[0].get_xydata().tolist() == [[1, 0.4], [2, 0.7]]
    assert below.lines[0].get_xydata().tolist() == [[1, 1.5], [2, 0.9]]
    assert (above.get_ylabel(), below.get_ylabel(), below.get_xlabel()) == (
        'test accuracy (share)', 'training loss (nats)', 'epoch')
    assert below.get_ylim()[0] == 0 and below.get_ylim()[1] > 1.5  # no point lies on the edge
    accuracy_curve([EpochResult(1, 1.0, 1.0, 0.1, 1.0)], 'a.png', '')
    label, below_dot = (drawn.axes[0].texts[0].xyann[1] for drawn in figures[::-1])
    assert label > 0 > below_dot  # the label of a low accuracy is above the dot, not on the axis


def run_folder(name, devices=('cpu(0)',), accuracies=(0.5,), **settings):
    """Create the folder of a run; return its name."""
    Path(name).mkdir()
    Path(name, 'config.json').write_text(json.dumps({**CONFIG, 'devices': devices, **settings}))
    history = [EpochResult(i + 1, 2.0 + i, 1.0, acc, 100.0) for i, acc in enumerate(accuracies)]
    write_history(history, Path(name, 'history.csv'), 'validation' if settings.get('validation_size') else 'test')
    return name


def labels(axes):
    return [line.get_label() for line in axes.lines]


def test_compare_runs(figures, capsys):
    runs = [run_folder('one', accuracies=[0.1, 0.6, 0.7]), run_folder('two', ['cpu(0)', 'cpu(1)'], [0.2, 0.5])]
    assert plot.main([*runs, '--out', 'both.png']) == 0
    assert Path('both.png').read_bytes()[:4] == b'\x89PNG' and capsys.readouterr().out == 'picture: both.png\n'
    axes, = figures[0].axes
    assert [line.get_xydata().tolist() for line in axes.lines] == [
        [[1, 0.1], [2, 0.6], [3, 0.7]], [[1, 0.2], [2, 0.5]]]
    assert labels(axes) == ['scratch, cpu(0): 3.0 s per epoch', 'scratch, cpu(0), cpu(1): 2.5 s per epoch']
    wide, thin = axes.lines  # equal curves are both visible
    assert wide.get_linewidth() > 2 * thin.get_linewidth() and wide.get_markersize() > 2 * thin.get_markersize()


def test_runs_are_named_by_what_differs(figures):
    """By their folders only where nothing else does."""
    plot.compare_runs([run_folder(name, lr=lr, momentum=0.9) for name, lr in (('a', 0.1), ('b', 0.2), ('c', 0.2))],
                      'three.png')
    assert labels(figures[0].axes[0]) == [
        f'scratch, cpu(0), lr {name}: 2.0 s per epoch' for name in ('0.1', '0.2 in b', '0.2 in c')]


def test_runs_of_loops_of_ones_own(figures):
    """Their folders have no config.json."""
    runs = [run_folder(name) for name in ('theirs', 'mine', 'other')]
    for folder in runs[1:]:
        Path(folder, 'config.json').unlink()
    for chosen in (runs, runs[1:]):
        plot.compare_runs(chosen, 'a.png')
    assert labels(figures[0].axes[0]) == [f'{name}: 2.0 s per epoch' for name in ('scratch, cpu(0)', 'mine', 'other')]
    assert [figure.axes[0].get_title() for figure in figures] == [
        'Accuracy on glyphs, other data', 'Accuracy on other data']


def test_runs_that_were_evaluated_on_other_images(figures):
    runs = [run_folder(str(size), validation_size=size) for size in (None, 100)]
    for folders, words in ((runs, 'test or validation'), (runs[:1], 'test'), (runs[1:], 'validation')):
        plot.compare_runs(folders, 'two.png')
        assert figures[-1].axes[0].get_ylabel() == f'{words} accuracy (share)'
    assert labels(figures[0].axes[0]) == [
        f'scratch, cpu(0), validation_size {size}: 2.0 s per epoch' for size in ('none', 100)]


def test_long_names_of_folders_and_dollar_signs(figures):
    """Nothing is cut off or covered, and a dollar sign does not begin a formula."""
    runs = [run_folder(f'{name}-costs-$5-{"and-more-" * 12}', ['cpu(0)'] * 9) for name in 'abcdefgh']
    plot.compare_runs(runs, 'both.png')
    axes, = figures[0].axes
    legend, label = axes.get_legend(), axes.xaxis.label.get_window_extent()
    extent = legend.get_window_extent()
    assert extent.x0 > 0 and extent.x1 < figures[0].bbox.x1 and extent.y0 > 0 and extent.y1 < label.y0
    for run, text in zip(runs, legend.get_texts()):
        assert text.get_text().replace('\n', '').replace(r'\$', '$').replace(' ', '').count(run) == 1
        assert '$' not in text.get_text().replace(r'\$', '')
    accuracy_curve(HISTORY, 'accuracy.png', ', '.join(f'cpu({i})' for i in range(40)))
    extent = figures[1].axes[0].title.get_window_extent()
    assert extent.x0 > 0 and extent.x1 < figures[1].bbox.x1 and extent.y1 < figures[1].bbox.y1


@pytest.mark.parametrize('num_epochs', [1, 2])
def test_epochs_are_whole_numbers(num_epochs, figures):
    plot.compare_runs([run_folder('one', accuracies=[0.1] * num_epochs)], 'a.png')
    ticks = figures[0].axes[0].get_xticks()
    assert len(ticks) and (ticks % 1 == 0).all()


@pytest.mark.parametrize('name, content, words', [
    ('history.csv', b'epoch\r\n1\r\n', "lacks 'seconds'"),
    ('history.csv', b'"' + b'a' * 200_000, 'field larger than field limit'),
    ('config.json', b'{}', 'chapter of its configuration is missing'),
    ('config.json', b'null', 'its configuration is missing'),
    ('config.json', b'[' * 100_000, 'cannot be read '), ('config.json', b'\xff', "can't decode"),
    ('history.csv', b'epoch,seconds,loss,test_acc,images_per_second\r\n', 'no epoch of this run has ended: resume it'),
    ('history.csv', b'', 'no epoch of this run has ended: resume it, or leave it out'),
    ('', b'', 'not the folder of a run, its config.json or history.csv cannot be read (No such file or directory)')])
def test_a_run_with_broken_files(name, content, words, capsys):
    folder = run_folder('one') if name else '.'
    if name:
        Path('one', name).write_bytes(content)
    assert plot.main([folder]) == 2
    line, = capsys.readouterr().err.splitlines()
    assert line.startswith(f'plot: {folder}: ') and words in line, line
    assert not Path('accuracy.png').exists()


def test_matplotlib_is_loaded_only_to_draw():
    """It takes most of a second."""
    assert not new_process.facts()['matplotlib']  # after Animator().add(1, 2)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which('make'), reason='make is not installed')
def test_make_compare_draws_both_runs():
    repo = Path(__file__).parents[2]
    Path('.venv').symlink_to(sys.prefix)
    command = ['make', '-f', repo / 'Makefile', '-o', '.venv/installed', 'compare',
               'ARGS=--dataset glyphs --train-size 32 --batch-size 16 --num-epochs 1 --no-plot']
    done = subprocess.run(command, env={**os.environ, 'PYTHONPATH': str(repo)}, capture_output=True, text=True,
                          timeout=240)
    assert done.returncode == 0, done.stderr
    folder, = Path('runs').iterdir()
    devices = [json.loads((folder / run / 'config.json').read_text())['devices'] for run in ('one', 'two')]
    assert list(map(len, devices)) == [1, 2]
    assert (folder / 'accuracy.png').read_bytes().startswith(b'\x89PNG')

"""Tests of `python -m gluon_mgpu predict`, on the test set and on image files."""
import re
import shutil

import idx_files
import numpy
import pytest
from devices_flag import devices_flag
from history_csv import history
from pictures_of_digits import picture
from PIL import Image
from slow import slow

from gluon_mgpu import concise, scratch
from gluon_mgpu.checkpoints import checkpoint
from gluon_mgpu.checkpoints.run_folder import checkpoints
from gluon_mgpu.mxnet_setup.compat import np
from gluon_mgpu.programs import predict
from gluon_mgpu.programs.load_run import trained_network


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """A folder for the runs that all tests here share."""
    return tmp_path_factory.mktemp('trained')


@pytest.fixture
def runs(trained, tmp_path, devices, monkeypatch, capsys):
    """A function that copies a run of a chapter on few rows and returns its folder and last accuracy."""
    idx_files.write(tmp_path / 'data/mnist', idx_files.dataset(96, 50))
    monkeypatch.chdir(tmp_path)

    def run(chapter, *flags):
        module = {'scratch': scratch, 'concise': concise}[chapter]
        folder = trained / ''.join([chapter, *flags])
        if not folder.exists():
            assert module.main(['--dataset', 'mnist', '--data-dir', 'data', '--batch-size', '16', '--num-epochs', '2',
                                '--no-plot', *devices_flag(devices), '--out-dir', str(folder), *flags]) == 0
        shutil.copytree(folder, tmp_path / chapter)
        capsys.readouterr()
        return tmp_path / chapter, float(history(tmp_path / chapter)[-1]['test_acc'])

    return run


@pytest.fixture
def empty_picture(monkeypatch):
    """Draw no images, and no confusion matrix, which takes half a second."""
    for name in ('_draw_images', '_draw_confusion'):
        monkeypatch.setattr(predict, name, lambda *args: None)


@pytest.mark.parametrize('chapter, flags, rows', [('scratch', ['--test-size', '37'], 37), slow('concise', [], 50)])
def test_the_accuracy_equals_that_of_the_run(chapter, flags, rows, runs, capsys):
    """On the devices and the test images of the run, after its last epoch."""
    folder, accuracy = runs(chapter, *flags)
    assert predict.main([str(folder)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f'test acc: {accuracy:.4f} on {rows} test images, after epoch 2 of 2', f'picture: {folder}/predictions.png']
    assert (folder / 'predictions.png').read_bytes()[:4] == b'\x89PNG'


@pytest.mark.slow
def test_a_checkpoint_another_device_and_another_picture(runs, devices, capsys, tmp_path):
    folder, accuracy = runs('scratch')
    flags = [str(checkpoints(folder)[0]), '--devices', f'{devices[0].device_type}:0', '--out', 'there']
    assert predict.main(flags) == 0
    assert capsys.readouterr().out.splitlines() == [
        f'test acc: {accuracy:.4f} on 50 test images, after epoch 2 of 2', 'picture: there.png']
    assert (tmp_path / 'there.png').exists() and not (folder / 'predictions.png').exists()


@pytest.mark.slow
def test_averaged_statistics_of_batch_norm_are_reported(runs, devices, capsys):
    folder, _ = runs('concise')
    assert predict.main([str(folder), '--devices', f'{devices[0].device_type}:0']) == 0
    assert 'each device now has their mean' in capsys.readouterr().out


def test_the_picture_names_the_run(runs, figures, empty_picture):
    folder, _ = runs('scratch')
    assert predict.main([str(folder)]) == 0
    assert str(folder) in figures[-1]._suptitle.get_text().replace('\n', '')


def test_the_devices_of_several_workers(runs, devices, tmp_path, capsys, empty_picture):
    """A job records a device for each worker, possibly with the same names."""
    folder, accuracy = runs('scratch')
    record, arrays = checkpoint.read(checkpoints(folder)[0])
    metadata, names = record.pop('metadata'), list(map(str, devices))
    metadata['config']['devices'] = names + names
    checkpoint.write(tmp_path / 'job.safetensors', checkpoint.Snapshot(arrays, record), metadata)
    assert list(map(str, trained_network(tmp_path / 'job.safetensors')[1])) == names
    assert predict.main([str(tmp_path / 'job.safetensors')]) == 0
    assert capsys.readouterr().out.splitlines()[0] == f'test acc: {accuracy:.4f} on 50 test images, after epoch 2 of 2'


@pytest.mark.slow
def test_a_damaged_checkpoint_is_skipped(runs, capsys):
    """The one before it is of an earlier epoch."""
    folder, _ = runs('scratch')
    newest = checkpoints(folder)[0]
    newest.write_bytes(newest.read_bytes()[:-1])
    assert predict.main([str(folder)]) == 0
    out, err = capsys.readouterr()
    assert err.startswith(f'{newest}: truncated or altered')
    assert out.splitlines()[0].endswith(' test images, after epoch 1 of 2')


def test_image_files(runs, capsys):
    folder, _ = runs('scratch')
    rng = numpy.random.default_rng(0)
    Image.fromarray(rng.integers(0, 255, (28, 28), 'uint8')).save('grey.png')
    Image.fromarray(rng.integers(0, 255, (90, 200, 3), 'uint8')).save('colour.jpg')
    assert predict.main([str(folder), 'grey.png', 'colour.jpg']) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and not (folder / 'predictions.png').exists()
    for name, line in zip(('grey.png', 'colour.jpg'), lines):
        found = re.fullmatch(rf'{name}: (\d) (\d+)%, (\d) (\d+)%, (\d) (\d+)%', line)
        assert found, line
        shares = [int(found[i]) for i in (2, 4, 6)]
        assert shares == sorted(shares, reverse=True) and sum(shares) <= 102 and len(set(found.group(1, 3, 5))) == 3


def test_probabilities_by_hand(devices):
    """The network gives log(1), log(2), log(3) to every row, so that they are 1/6, 2/6, 3/6."""
    def net(X):
        return np.broadcast_to(np.log(np.array([1.0, 2.0, 3.0], ctx=X.ctx)), (len(X), 3))

    for n in (1, 5, 300):
        found = predict.probabilities(net, numpy.zeros((n, 28, 28), 'float32'), devices)
        # float32 logarithms, of up to 1.1: 2^-24 of it, and exp as much again
        numpy.testing.assert_allclose(found, [[1 / 6, 2 / 6, 3 / 6]] * n, rtol=2e-7)


def test_rows_keep_their_order(devices):
    images = numpy.arange(7, dtype='float32')[:, None, None] * numpy.ones((1, 28, 28), 'float32')
    found = predict.probabilities(lambda X: X.reshape(len(X), -1)[:, :1] * np.array([[0.0, 1.0]], ctx=X.ctx), images,
                                  devices, batch_size=3)
    assert numpy.argsort(found[:, 1]).tolist() == list(range(7))


def test_the_picture_marks_wrong_predictions(tmp_path, figures, monkeypatch):
    monkeypatch.setattr(predict, 'write_picture', lambda figure, path: None)  # the first test writes one
    images, labels = numpy.zeros((4, 28, 28)), numpy.array([0, 1, 1, 1])
    predict.draw_predictions(images, labels, numpy.array([0, 1, 0, 1]), ('cat', 'dog'), tmp_path / 'a.png', 'a title')
    left, right = figures[0].subfigs
    assert [axes.get_title() for axes in left.axes[:4]] == ['cat', 'dog', 'cat\n(is dog)', 'dog']
    assert [axes.title.get_color() for axes in left.axes[:3]] == ['black', 'black', 'tab:red']
    assert [text.get_text() for text in right.axes[0].texts] == ['1', '', '1', '2']  # cats, then dogs


def test_a_title_of_two_lines_is_above_the_names(tmp_path, figures):
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    predict.draw_predictions(numpy.zeros((1, 28, 28)), numpy.array([1]), numpy.array([0]), ('cat', 'dog'),
                             tmp_path / 'a.png',
                             'runs/mine: scratch on fashion-mnist, 10.0% of 10,000 test\nimages correct')
    figure, = figures
    FigureCanvasAgg(figure).draw()
    title, name = (text.get_window_extent() for text in (figure._suptitle, figure.subfigs[0].axes[0].title))
    assert figure.bbox.y1 > title.y1 and title.y0 > name.y1 + 10  # pixels


def test_invalid_command_lines(runs, capsys, empty_picture, full_disk):
    folder, accuracy = runs('scratch')
    picture(0, (28, 28)).save('a.png')
    for flags, line in (
            ([folder, 'a.png', '--out', 'b.png'], '--out and --data-dir are for the test set: leave them out, or the'),
            ([folder, 'a.png', '--data-dir', 'data'], '--out and --data-dir are for the test set'),
            ([folder, '--data-dir', '/x'], '--data-dir /x/mnist: train-images-idx3-ubyte.gz, '),
            ([folder, '--data-dir', folder], f'--data-dir {folder}/mnist: train-images-idx3-ubyte.gz, ')):
        assert predict.main([str(flag) for flag in flags]) == 2
        out, err = capsys.readouterr()
        assert err.startswith(f'predict: {line}') and err.count('\n') == 1 and out == ''
    with full_disk():
        assert predict.main([str(folder)]) == 2
    assert predict.main([str(folder), '--out', 'missing/b.png']) == 2
    out, err = capsys.readouterr()
    assert out == 2 * f'test acc: {accuracy:.4f} on 50 test images, after epoch 2 of 2\n'  # the accuracy is not lost
    assert err == (f'predict: {folder}/predictions.png: No space left on device\n'
                   'predict: missing/b.png: No such file or directory\n')


def test_a_run_with_a_relative_data_dir_from_another_folder(runs, tmp_path, capsys, monkeypatch, empty_picture):
    folder, accuracy = runs('scratch')
    (tmp_path / 'elsewhere').mkdir()
    monkeypatch.chdir(tmp_path / 'elsewhere')
    assert predict.main([str(folder)]) == 0
    assert capsys.readouterr().out.startswith(f'test acc: {accuracy:.4f}')

"""Fixtures of the tests of ONNX models."""
import pytest

from gluon_mgpu.programs.onnx import export


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run(capfd):
    """A function that calls the command and returns its exit status and the last line of stdout or stderr."""
    def call(*args):
        status = export.main(list(args))
        out, err = capfd.readouterr()
        errors = [line for line in err.splitlines() if not line.startswith('[')]
        assert len(errors) == bool(status), err
        return status, errors[0].removeprefix('export: ') if status else out.splitlines()[0]
    return call

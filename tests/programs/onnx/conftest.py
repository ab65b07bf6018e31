"""Fixtures of the tests of ONNX models."""
import pytest

from gluon_mgpu.programs.onnx import export


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run(capfd):
    """A function that calls the command and returns its stdout, or the line of its error if `status` is not 0."""
    def call(*args, status=0):
        capfd.readouterr()
        found = export.main(list(args))
        out, err = capfd.readouterr()
        assert found == status, out + err
        errors = [line for line in err.splitlines() if not line.startswith('[')]
        assert len(errors) == bool(status), err
        return errors[0].removeprefix('export: ') if status else out
    return call

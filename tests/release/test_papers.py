"""What is said of a release in several places is the same in all of them."""
from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import pytest

import gluon_mgpu

REPO = Path(__file__).parents[2]
MAKEFILE = (REPO / 'Makefile').read_text()
WORKFLOW = REPO / '.github/workflows/ci.yml'


def text(name):
    return (REPO / name).read_text()


def test_the_version():
    assert re.fullmatch(r'\d+\.\d+\.\d+', gluon_mgpu.__version__)
    assert re.search(r'^version: (\S+)$', text('CITATION.cff'), re.M)[1] == gluon_mgpu.__version__
    assert re.search(r'^## (\S+)', text('CHANGELOG.md'), re.M)[1] == gluon_mgpu.__version__
    assert 'version =' not in text('pyproject.toml').replace('target-version =', '')  # hatch reads __init__.py


def test_every_requirement_has_a_lowest_version():
    """Else `make test-oldest` would take one from ten years ago."""
    try:
        requirements = metadata.requires('gluon-mgpu')
    except metadata.PackageNotFoundError:
        pytest.skip('gluon-mgpu is run from the checkout, not installed')
    assert [r for r in requirements if not re.search('[>=]=', r.split(';')[0])] == []


def test_what_a_refusal_says_of_numpy_is_what_is_required():
    assert "'numpy>=1.22,<2'," in text('pyproject.toml')
    assert set(re.findall(r"'numpy[<>=]\S*'", text('gluon_mgpu/mxnet_setup/installation.py'))) == {"'numpy>=1.22,<2'"}


def test_pre_commit_runs_what_make_lint_runs():
    assert re.findall(r'^\s+entry: (.*)$', text('.pre-commit-config.yaml'), re.M) == ['make lint']


def test_the_workflow_tries_every_python_that_is_promised():
    promised = re.findall(r'Python :: (3\.\d+)', text('pyproject.toml'))
    assert promised == ['3.9', '3.10', '3.11', '3.12']
    assert re.search(r'^\s+python: \[(.*)\]$', WORKFLOW.read_text(), re.M)[1] == str(promised)[1:-1]


@pytest.mark.parametrize('path', ['.github/workflows/ci.yml', 'CONTRIBUTING.md', 'SECURITY.md', 'docs/gpus.md'])
def test_the_commands_that_are_named_exist(path):
    targets = set(re.findall(r'^([a-z0-9-]+):', MAKEFILE, re.M))
    named = set(re.findall(r'(?:^    |run: |`)make ([a-z][a-z0-9-]*)', text(path), re.M))
    assert named and named <= targets


def test_make_help_tells_all_commands():
    phony = set(re.search(r'^\.PHONY:((?:.*\\\n)*.*)', MAKEFILE, re.M)[1].replace('\\', '').split())
    assert set(re.findall(r"@echo 'make ([a-z0-9-]+)", MAKEFILE)) == phony - {'help'}


def test_links_between_the_papers_lead_somewhere():
    for name in ('CHANGELOG.md', 'CONTRIBUTING.md', 'SECURITY.md', 'docs/gpus.md'):
        for link in re.findall(r'\]\(([^)#:]+)\)', text(name)):
            assert (REPO / name).parent.joinpath(link).exists(), f'{name}: {link}'

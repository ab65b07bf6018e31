"""Facts about a release that stand in several files agree."""
import re
import subprocess
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
    version, date = re.search(r'^## (?!Unreleased)(\S+) \((\S+)\)$', text('CHANGELOG.md'), re.M).groups()
    assert version == gluon_mgpu.__version__
    assert re.search(r"^date-released: '(\S+)'$", text('CITATION.cff'), re.M)[1] == date
    assert 'version =' not in text('pyproject.toml').replace('target-version =', '')  # hatch reads __init__.py


def test_every_requirement_has_a_lowest_version():
    """Otherwise, `make test-oldest` would install versions that are ten years old."""
    try:
        requirements = metadata.requires('gluon-mgpu')
    except metadata.PackageNotFoundError:
        pytest.skip('gluon-mgpu is run from the checkout, not installed')
    assert [r for r in requirements if not re.search('[>=]=', r.split(';')[0])] == []


def test_the_message_about_numpy_states_the_requirement():
    assert "'numpy>=1.22'," in text('pyproject.toml')
    assert set(re.findall(r"'numpy[<>=]\S*'", text('gluon_mgpu/mxnet_setup/installation.py'))) == {"'numpy>=1.22'"}


def test_every_file_installs_the_same_mxnet():
    wheels = sorted(re.findall(r"'(mxnet\S*==[\d.b]+);", text('pyproject.toml')))
    assert wheels == ['mxnet-cu112==1.9.1', 'mxnet==1.9.1', 'mxnet==2.0.0b1']
    for name in ('tools/make_venv.sh', 'tools/test_wheel.sh', 'gluon_mgpu/mxnet_setup/installation.py', 'README.md',
                 'docs/devices.md'):
        assert set(re.findall(r'mxnet(?:-cu112)?==[\d.b]*\d', text(name))) <= {*wheels}


def test_uv_knows_that_only_one_mxnet_can_be_installed():
    """Otherwise `uv lock` finds no solution."""
    extras = re.findall(r"^(\w+) = \[\s*'mxnet", text('pyproject.toml'), re.M)
    assert len(extras) == 3
    conflicts = ', '.join(f"{{extra = '{extra}'}}" for extra in extras)
    assert f'\nconflicts = [[{conflicts}]]\n' in text('pyproject.toml')


def test_the_packages_of_a_minimal_system():
    """README.md names what `make` asks for."""
    commands = {'debian': 'apt-get install -y python3-venv make', 'fedora': 'dnf install -y python3 make'}
    for name, command in commands.items():
        arm64, x86 = re.findall(rf"^  {name}='(.*)'", text('tools/make_venv.sh'), re.M)
        assert re.search(rf'^    sudo {command} {x86}  ', text('README.md'), re.M)
        assert f'`sudo {command} {arm64}`' in text('docs/devices.md')


def test_a_container_leaves_its_results_and_data_outside():
    """The page mounts the folder in which the image writes both."""
    workdir = re.search('^WORKDIR (.*)$', text('Dockerfile'), re.M)[1]
    mounted = re.findall(r'^    docker run .* -v "\$PWD/runs:(\S+)"', text('docs/devices.md'), re.M)
    assert set(mounted) == {f'{workdir}/runs'}
    assert re.search('^ENV .*XDG_CACHE_HOME=(.*)/', text('Dockerfile'), re.M)[1] == mounted[0]


def test_the_workflow_tests_every_supported_python():
    supported = re.findall(r'Python :: (3\.\d+)', text('pyproject.toml'))
    assert supported == ['3.10', '3.11', '3.12', '3.13', '3.14']
    assert re.search(r'^\s+python: \[(.*)\]$', WORKFLOW.read_text(), re.M)[1] == str(supported)[1:-1]


@pytest.mark.parametrize('path', ['workflows/ci.yml', 'workflows/release.yml', 'CONTRIBUTING.md', 'SECURITY.md'])
def test_the_make_commands_in_documents_exist(path):
    targets = set(re.findall(r'^([a-z0-9-]+):', MAKEFILE, re.M))
    named = set(re.findall(r'(?:^    |run: |`)make ([a-z][a-z0-9-]*)', text(f'.github/{path}'), re.M))
    assert named and named <= targets


@pytest.mark.parametrize('name', ['ci.yml', 'release.yml'])
def test_the_workflows_pin_their_actions(name):
    used = re.findall(r'uses: (.*)$', WORKFLOW.with_name(name).read_text(), re.M)
    assert used and all(re.fullmatch(r'[\w/-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+', action) for action in used)


def test_make_help_lists_all_commands():
    phony = set(re.search(r'^\.PHONY:((?:.*\\\n)*.*)', MAKEFILE, re.M)[1].replace('\\', '').split())
    shown = subprocess.check_output(['make', 'help'], cwd=REPO, text=True)
    assert set(re.findall('^make ([a-z0-9-]+)', shown, re.M)) == phony - {'help'}
    assert max(map(len, shown.splitlines())) < 80


def test_make_asks_the_script_about_a_python_that_is_named():
    """Also if the environment is up to date; otherwise PYTHON would have no effect."""
    command = ['make', '-n', '-o', 'pyproject.toml', 'install']
    asked = [subprocess.run([*command, *more], cwd=REPO, text=True, capture_output=True).stdout
             for more in ([], ['PYTHON=x'])]
    assert ['make_venv' in lines for lines in asked] == [not (REPO / '.venv/installed').exists(), True]

"""Contents of the wheel and the source archive. `make test-wheel` trains with the wheel in an empty environment."""
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import gluon_mgpu

REPO = Path(__file__).parents[2]
NAME = f'gluon_mgpu-{gluon_mgpu.__version__}'
# Caches, environments, results of runs, and files for the CI of this project
UNWANTED = re.compile(
    r'__pycache__|\.pyc$|(^|/)(\.\w+_cache|\.hypothesis|\.venv[^/]*|\.git|\.ci|runs|build|dist|site)/')


@pytest.fixture(scope='module')
def built(tmp_path_factory):
    """A folder with the wheel and the source archive, built as by pip, without errors and warnings."""
    pytest.importorskip('hatchling')
    folder = tmp_path_factory.mktemp('dist')
    done = subprocess.run([sys.executable, '-W', 'error', '-m', 'hatchling', 'build', '-d', folder], cwd=REPO,
                          text=True, capture_output=True, timeout=60, env={**os.environ, 'REPOSITORY_URL': ''})
    assert done.returncode == 0, done.stderr
    assert 'warning' not in (done.stdout + done.stderr).lower()
    assert sorted(os.listdir(folder)) == [f'{NAME}-py3-none-any.whl', f'{NAME}.tar.gz']
    return folder


@pytest.fixture(scope='module')
def installed(built, tmp_path_factory):
    """A folder with the files of the wheel, as pip installs them."""
    folder = tmp_path_factory.mktemp('site')
    with zipfile.ZipFile(built / f'{NAME}-py3-none-any.whl') as wheel:
        wheel.extractall(folder)
    return folder


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_nothing_else(installed):
    found = {str(path.relative_to(installed)) for path in installed.rglob('*') if path.is_file()}
    sources = {str(path.relative_to(REPO)) for path in (REPO / 'gluon_mgpu').rglob('*')
               if path.suffix == '.py' or path.name == 'py.typed'}
    info = f'{NAME}.dist-info'
    names = 'METADATA', 'RECORD', 'WHEEL', 'entry_points.txt', 'licenses/LICENSE'
    assert found == sources | {f'{info}/{name}' for name in names}


@pytest.mark.slow
def test_the_metadata_of_the_wheel(installed):
    metadata = Parser().parsestr((installed / f'{NAME}.dist-info/METADATA').read_text())
    assert {'cpu', 'cu112', 'mxnet2', 'onnx', 'test'} <= set(metadata.get_all('Provides-Extra'))
    assert not any('mxnet' in r and 'extra' not in r for r in metadata.get_all('Requires-Dist'))  # the user chooses one


def metadata(address):
    """Let hatchling print the metadata of a package that is published at this address."""
    return subprocess.run([sys.executable, '-m', 'hatchling', 'metadata'], cwd=REPO, text=True, capture_output=True,
                          timeout=60, env={**os.environ, 'REPOSITORY_URL': address})


def test_a_published_package_leads_to_its_repository():
    pytest.importorskip('hatchling')
    here, published = (json.loads(metadata(address).stdout) for address in ('', 'https://example.org/x/gluon_mgpu'))
    assert here['urls'] == {'Book': 'https://d2l.ai'}
    assert here['readme']['text'] == (REPO / 'README.md').read_text()
    root, tag = 'https://example.org/x/gluon_mgpu', f'v{gluon_mgpu.__version__}'
    assert published['urls'] == {'Book': 'https://d2l.ai', 'Source': root, 'Issues': f'{root}/issues',
                                 'Changelog': f'{root}/blob/{tag}/CHANGELOG.md'}
    readme = published['readme']['text']
    assert f'({root}/raw/{tag}/docs/accuracy.png)' in readme
    assert f'({root}/blob/{tag}/docs/troubleshooting.md#the-doctor)' in readme
    assert not [link for link in re.findall(r']\(([^)]*)', readme) if not link.startswith('https://')]


@pytest.mark.parametrize('address', ['gluon_mgpu', 'http://example.org/x', 'https://example.org', 'https://a.org/b/'])
def test_an_address_that_cannot_be_one(address):
    pytest.importorskip('hatchling')
    done = metadata(address)
    assert done.returncode
    assert f'REPOSITORY_URL={address}: must look like https://github.com/someone/gluon_mgpu' in done.stderr


@pytest.mark.slow
def test_the_source_archive_holds_everything_needed_for_development(built):
    with tarfile.open(built / f'{NAME}.tar.gz') as archive:
        names = [name.partition('/')[2] for name in archive.getnames()]
    assert not [name for name in names if UNWANTED.search(name)]
    listed = subprocess.run(['sh', '-c', 'git ls-files'], cwd=REPO, text=True, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip('needs git and a checkout')
    expected = {name for name in listed.stdout.splitlines() if not UNWANTED.search(name) and (REPO / name).exists()}
    assert expected <= set(names)
    assert 'PKG-INFO' in names

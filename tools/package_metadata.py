"""Metadata that depends on where the repository is published; hatchling calls this when it builds the package.

The package index shows README.md outside the repository. With the variable REPOSITORY_URL, such as
https://github.com/someone/gluon_mgpu, README's links lead to the files of this version there, and the index lists the
addresses. Without it, the links stay as they are.
"""
import os
import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

PICTURE = re.compile(r'(!\[[^]]*\]\()(?!https?:)')
LINK = re.compile(r'((?<!!)\[[^]]*\]\()(?!https?:|#)')


class PackageMetadata(MetadataHookInterface):
    def update(self, metadata: dict) -> None:
        """Set the dynamic fields `readme` and `urls`."""
        readme = Path(self.root, 'README.md').read_text(encoding='utf-8')
        urls = {'Book': 'https://d2l.ai'}
        if address := os.environ.get('REPOSITORY_URL'):
            if not re.fullmatch(r'https://[^/\s]+/\S*[^/\s]', address):
                raise ValueError(f'REPOSITORY_URL={address}: must look like https://github.com/someone/gluon_mgpu')
            tag = f'v{metadata["version"]}'
            readme = PICTURE.sub(rf'\1{address}/raw/{tag}/', LINK.sub(rf'\1{address}/blob/{tag}/', readme))
            urls |= {'Source': address, 'Issues': f'{address}/issues',
                     'Changelog': f'{address}/blob/{tag}/CHANGELOG.md'}
        metadata['urls'] = urls
        metadata['readme'] = {'content-type': 'text/markdown', 'text': readme}

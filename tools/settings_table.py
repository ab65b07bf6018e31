"""Write the table of settings in docs/command-line.md: python tools/settings_table.py"""
import re
from pathlib import Path

from gluon_mgpu.settings.chapters import CHAPTERS
from gluon_mgpu.settings.settings import SETTINGS, Setting

PAGE = Path(__file__).resolve().parents[1] / 'docs' / 'command-line.md'
HEAD = '| flag | default | | when resuming |\n|---|---|---|---|\n'
TABLE = re.compile(re.escape(HEAD) + r'(\|.*\n)*')


def with_table(markdown: str) -> str:
    """Return the page with the table of the present settings."""
    return TABLE.sub(lambda _: HEAD + ''.join(map(row, SETTINGS)), markdown)


def row(setting: Setting) -> str:
    """Return the row of a setting."""
    metavar = '' if setting.kind is bool else 'NAME' if setting.choices else setting.metavar
    text = setting.help + (f': {", ".join(setting.choices)}' if setting.choices and ':' not in setting.help else '')
    text = re.sub(r'(--[a-z-]+|[a-z]+\.png)', r'`\1`', text)
    if setting.page:
        text += f': [{setting.page.partition(".")[0].strip("#").replace("-", " ")}]({setting.page})'
    if len(setting.chapters) < len(CHAPTERS):
        text = f'{", ".join(f"`{chapter}`" for chapter in setting.chapters)} only: {text}'
    flag = f'{setting.flag}{" " + metavar if metavar else ""}'.replace('auto|PATH', 'auto\\|PATH')
    return f'| `{flag}` | {default(setting)} | {text} | {"fixed" if setting.fixed else ""} |\n'


def default(setting: Setting) -> str:
    """Return the default in words."""
    if any(setting.name in chapter.defaults for chapter in CHAPTERS.values()):
        return ', '.join(f'`{name}` {setting.default_of(name)}' for name in setting.chapters)
    if setting.kind is bool:
        return 'on' if setting.default else 'off'
    return setting.default_text or ('' if setting.default is None else str(setting.default).replace('0.0', '0'))


if __name__ == '__main__':
    PAGE.write_text(with_table(PAGE.read_text()))

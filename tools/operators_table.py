"""Write the table of operators in docs/export.md: python tools/operators_table.py"""
import re
from pathlib import Path

from gluon_mgpu.programs.onnx import arithmetic, arrays, detection, functions, layers
from gluon_mgpu.programs.onnx.conversion import ALIASES

PAGE = Path(__file__).resolve().parents[1] / 'docs' / 'export.md'
HEAD = '| | operators |\n|---|---|\n'
TABLE = re.compile(re.escape(HEAD) + r'(\|.*\n)*')
MODULES = {'layers': layers, 'along axes': functions, 'of elements': arithmetic, 'shapes': arrays,
           'detection': detection}


def with_table(markdown: str) -> str:
    """Return the page with the table of the present operators."""
    return TABLE.sub(lambda _: HEAD + ''.join(row(title, module) for title, module in MODULES.items()), markdown)


def row(title, module) -> str:
    """Return the row of a module; arithmetic with arrays, numbers and both orders is named once."""
    once = {*arithmetic.ARITHMETIC, *arithmetic.COMPARISONS}
    forms = {form.format(kind) for kind in once for form in (*arithmetic.NAMES[1:], 'r{}scalar')}
    names = [name for name in (*module.CONVERTERS, *ALIASES)
             if ALIASES.get(name, name) in module.CONVERTERS and name not in {*forms, *functions.REDUCTIONS} - once]
    names += functions.REDUCTIONS if module is functions else []
    return f'| {title} | {", ".join(sorted({*names} - {"reduce"}))} |\n'


if __name__ == '__main__':
    PAGE.write_text(with_table(PAGE.read_text()))

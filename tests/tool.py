"""Programs of tools/ as modules."""
import importlib.util
from pathlib import Path

TOOLS = Path(__file__).parents[1] / 'tools'


def load_tool(name):
    """Return the module tools/NAME.py."""
    spec = importlib.util.spec_from_file_location(name, TOOLS / f'{name}.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

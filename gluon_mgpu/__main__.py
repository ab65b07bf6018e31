"""The programs of this package: ``python -m gluon_mgpu doctor``, or ``gluon-mgpu doctor``."""
import importlib
import sys

from .base.program import BAD_INPUT, run_program, warn
from .base.text import print_text
from .settings.chapters import CHAPTERS

PROGRAMS = {  # name: (module with `main`, purpose)
    **{name: (name, chapter.purpose) for name, chapter in CHAPTERS.items()},
    'predict': ('programs.predict', 'evaluate a trained run on the test set, or classify image files'),
    'export': ('programs.onnx.export', 'write an ONNX model, also from files of net.export'),
    'plot': ('outputs.plot', 'plot the accuracy of several runs'),
    'check': ('programs.check.__main__', 'compare your own training step with one device'),
    'doctor': ('programs.doctor.doctor_report', 'check this machine'),
    'devices': ('devices.gpus', 'list the GPUs and the CPU contexts'),
    'timeline': ('outputs.timeline.draw', 'plot a recorded step'),
}


def main(argv: list | None = None) -> int:
    """Run the program that the first argument names, without one list the programs; return the exit status."""
    name, *rest = (sys.argv[1:] if argv is None else argv) or ['--help']
    if name in PROGRAMS:
        return importlib.import_module(f'gluon_mgpu.{PROGRAMS[name][0]}').main(rest)
    if name in ('-h', '--help'):
        return run_program('gluon_mgpu', lambda: print_text('python -m gluon_mgpu NAME', *(
            f'  {word:9} {purpose}' for word, (_, purpose) in PROGRAMS.items()), 'Each program has --help.'))
    warn(f'gluon_mgpu: {name}: no such program; use {", ".join(PROGRAMS)}; --help shows what each is for')
    return BAD_INPUT


if __name__ == '__main__':
    sys.exit(main())

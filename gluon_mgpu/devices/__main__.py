"""``python -m gluon_mgpu.devices``, the same as ``python -m gluon_mgpu devices``."""
import sys

from .gpus import main

if __name__ == '__main__':
    sys.exit(main())

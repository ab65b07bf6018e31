"""Types of flags that several benchmarks have."""
from gluon_mgpu.base.arguments import integer
from gluon_mgpu.base.flags import checked_flag

positive_integer = checked_flag(integer, 1, kind=int)

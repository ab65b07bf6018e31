"""Read by every Python that starts while Horovod is built: its build imports MXNet, which needs our preparation."""
from gluon_mgpu.mxnet_setup.runtime import prepare

prepare()

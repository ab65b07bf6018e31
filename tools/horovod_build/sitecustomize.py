"""Startup module of every Python in the build of Horovod, which imports MXNet and so needs our preparation."""
from gluon_mgpu.mxnet_setup.runtime import prepare

prepare()

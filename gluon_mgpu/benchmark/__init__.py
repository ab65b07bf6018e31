"""Scaling benchmark: the networks of both chapters on 1, 2, ... k devices of this machine."""

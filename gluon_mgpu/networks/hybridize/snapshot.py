"""The variables that the code of a network may read besides its arguments, to notice changes."""
from __future__ import annotations

import array
import contextvars
import functools
import inspect
import os
import random
import sys
import sysconfig
import threading
import types
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import numpy

from ...mxnet_setup.compat import gluon, layers_of

# Attributes of blocks that MXNet changes by itself, for example at the first call
_OF_MXNET = {'_active', '_cached_graph', '_cached_op', '_cached_op_args', '_called_infer_shape_already', '_counter',
             '_flags', '_in_format', '_init_counter', '_out_format', 'skip_states'}
# Objects that change without a change of their attributes
_UNKNOWN = (random.Random, numpy.random.RandomState, numpy.random.Generator, array.array, contextvars.ContextVar,
            threading.local)
_OPAQUE = {'builtins', 'gluon_mgpu', 'logging', 'mxnet', 'numpy'}  # packages whose objects keep their values, or log
_MISSING = object()
_SIMPLE = bool, bytes, float, int, str, type(None)
_LARGE_ARRAY, _MANY = 4096, 1000  # bytes, and objects per layer: more would take time in each call
_INSTALLED = tuple({sysconfig.get_path(name) for name in ('stdlib', 'purelib', 'platlib')})


class Snapshot:
    """The variables that the code of a network may read besides its arguments, as they are now.

    These are the attributes of all layers; for code outside of MXNet also attributes of its classes, and the global and
    nonlocal variables and default values that it names; and what the code in `forward` reaches in these: functions,
    lists, dicts, sets, small arrays of NumPy, ``os.environ`` and attributes of objects. `unknown` says why changes
    cannot be noticed, such as an iterator; otherwise it is None.
    """

    def __init__(self, network: Callable):
        layers = layers_of(network)
        self.params = list({id(param): param for layer in layers for param in layer._reg_params.values()}.values())
        self.unknown: str | None = None
        self._copies: dict[int, tuple[Any, Any]] = {}
        self._arrays: list[tuple[numpy.ndarray, Any]] = []
        self._variables: list[tuple] = []
        self._classes: dict[type, dict] = {}
        self._seen = {id(layer): layer for layer in layers}
        self._limit = _MANY * (1 + len(layers))
        self._names = {'forward', 'hybrid_forward', '__call__', '__getattr__'}  # in code that a call may reach
        for layer in layers:
            for value in (vars(layer), *vars(layer).values()):
                if isinstance(value, (dict, list)):
                    self._copies[id(value)] = value, value.copy()
            self._add_classes(layer)
        self._packages = {_package(kind.__module__) for kind in (*self._classes, network)
                          if inspect.isclass(kind) or inspect.isfunction(kind)}
        methods = [_function(member) for kind in self._classes for member in vars(kind).values()]
        self._visit(network)
        count = -1
        while count < len(self._seen):
            count = len(self._seen)
            for owner in (*self._classes, *layers):
                of_mxnet = _package(type(owner).__module__) == 'mxnet'
                for name, member in [*vars(owner).items()]:
                    is_special = name.startswith('__') and name not in ('__init__', '__new__')
                    if of_mxnet or is_special or name in self._names:
                        self._visit(_function(member))
        for method in methods:  # also those that only getattr finds
            if inspect.isfunction(method) and id(method) not in self._seen:
                self._add_variables(method.__globals__, {name for code in _codes(method) for name in code.co_names})
        if len(self._seen) > self._limit:
            self.unknown = 'it reaches too many objects'
        del self._seen, self._names

    def _add_classes(self, value: Any) -> None:
        self._classes.update((kind, dict(vars(kind))) for kind in type(value).__mro__
                             if _package(kind.__module__) not in ('mxnet', 'builtins'))

    def _add_variables(self, scope: Any, names: Iterable[str]) -> list:
        """Remember items of a dict, or attributes of something else; return their values."""
        found = [(scope, name, _value(scope, name)) for name in names]
        self._variables += found
        return [value for _, _, value in found]

    def _visit(self, value: Any) -> None:
        values = [value]
        while values and len(self._seen) <= self._limit:
            value = values.pop()
            if type(value) not in _SIMPLE and id(value) not in self._seen:
                self._seen[id(value)] = value
                values += self._inside(value)

    def _inside(self, value: Any) -> Iterable:
        """Remember what can change in a value, and return the values that it leads to."""
        if isinstance(value, (list, dict, set, deque, bytearray)):
            self._copies[id(value)] = value, value.copy()
            return [*value.values()] if isinstance(value, dict) else [*value]
        if isinstance(value, (tuple, frozenset)):
            return value
        if isinstance(value, numpy.ndarray):
            if value.nbytes > _LARGE_ARRAY:
                self.unknown = 'it uses a large array of NumPy'
            else:
                self._arrays.append((value, value.copy()))
        elif isinstance(value, _UNKNOWN) or hasattr(type(value), '__next__'):
            self.unknown = f'it uses an object of {type(value).__name__}'
        elif inspect.isfunction(value):
            return self._inside_function(value)
        elif isinstance(value, functools.partial):
            return value.func, value.args, value.keywords
        elif isinstance(value, (types.MethodType, types.BuiltinFunctionType)):
            return value.__self__, getattr(value, '__func__', None)
        elif value is os or value is os.environ:
            return [vars(os.environ)['_data']]
        elif isinstance(value, functools._lru_cache_wrapper):
            return [value.__wrapped__]
        elif isinstance(value, type):
            if self._is_own(value):
                self._classes[value] = dict(vars(value))
        elif _package(type(value).__module__) not in _OPAQUE and not isinstance(
                value, (types.ModuleType, gluon.Parameter)):
            self._add_classes(value)
            slots = [name for kind in type(value).__mro__ for name, member in vars(kind).items()
                     if inspect.ismemberdescriptor(member)]
            return [*self._add_variables(value, slots), getattr(value, '__dict__', None)]
        return []

    def _inside_function(self, function: Any) -> Iterable:
        found = [value for cell in function.__closure__ or () for value in self._add_variables(cell, ['cell_contents'])]
        if not self._is_own(function):
            return found
        found += self._add_variables(function, ['__code__', '__defaults__', '__kwdefaults__'])
        names = {name for code in _codes(function) for name in code.co_names}
        self._names |= names | {text for code in _codes(function) for text in code.co_consts if isinstance(text, str)}
        if names & {'NDArray', 'ndarray'} and not names & {'Symbol', 'sym', 'symbol'}:  # which tracing has instead
            self.unknown = 'it asks for the class of an array'
        for value in self._add_variables(function.__globals__, names):
            is_module = isinstance(value, types.ModuleType) and self._is_own(value)
            found += [value, *(self._add_variables(vars(value), names) if is_module else [])]
        return [*found, vars(function)]

    def _is_own(self, value: Any) -> bool:
        name = value.__name__ if isinstance(value, types.ModuleType) else value.__module__ or ''
        return _package(name) in self._packages or _is_of_user(name)

    def is_current(self) -> bool:
        """Return whether all variables still have the same values."""
        try:
            return (all(now == before or _differ_by_mxnet(now, before) for now, before in self._copies.values())
                    and all(_value(scope, name) is value for scope, name, value in self._variables)
                    and all(vars(kind) == before for kind, before in self._classes.items())
                    and all(now.tobytes() == before.tobytes() for now, before in self._arrays))
        except (NotImplementedError, TypeError, ValueError):  # from comparing arrays or symbols
            return False

    def restore(self) -> None:
        """Set all variables to their values in the snapshot."""
        for container, copy in self._copies.values():
            container.clear()
            container.extend(copy) if hasattr(container, 'extend') else container.update(copy)
        for numbers, copy in self._arrays:
            numbers[...] = copy
        changed = [(kind, name, before.get(name, _MISSING)) for kind, before in self._classes.items()
                   for name in {**before, **vars(kind)} if vars(kind).get(name) is not before.get(name)]
        for scope, name, value in self._variables + changed:
            if _value(scope, name) is value:
                continue
            if isinstance(scope, dict):
                scope.pop(name) if value is _MISSING else scope.update({name: value})
            else:
                delattr(scope, name) if value is _MISSING else setattr(scope, name, value)


def _differ_by_mxnet(now: Any, before: Any) -> bool:
    return isinstance(now, dict) and _OF_MXNET.issuperset(
        name for name in {**now, **before} if now.get(name) is not before.get(name))


def _package(module: str | None) -> str:
    return (module or '').partition('.')[0]


@functools.cache
def _is_of_user(module: str) -> bool:
    """Return whether a module is neither of Python nor of an installed package."""
    file = getattr(sys.modules.get(module), '__file__', None) or ''
    return (_package(module) not in ('mxnet', 'gluon_mgpu', *sys.builtin_module_names)
            and not file.startswith(_INSTALLED))


def _function(member: Any) -> Any:
    """Return the function in a property or a method of a class; return anything else as it is."""
    if isinstance(member, (property, functools.cached_property)):
        return member.fget if isinstance(member, property) else member.func
    return member.__func__ if isinstance(member, (classmethod, staticmethod)) else member


def _codes(function: Any) -> list[types.CodeType]:
    codes = [function.__code__]
    for code in codes:
        codes += [constant for constant in code.co_consts if inspect.iscode(constant)]
    return codes


def _value(scope: Any, name: str) -> Any:
    try:
        return scope.get(name, _MISSING) if isinstance(scope, dict) else getattr(scope, name)
    except (AttributeError, ValueError):  # ValueError: an empty cell
        return _MISSING

"""Finds in the source of a class which attributes its methods mention, and which they change in place (E13).

Only direct uses are found: `self.items.append(x)`, `self.book[key] = x`, `self.account.balance -= 5`, `total += 1` of a
`global`, and the same through a local variable. A class whose source cannot be read has no uses.
"""

import ast
import inspect
import linecache
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import msgspec

from strobe.user_code import place_of_line

_CHANGING = {
    *(
        "append",
        "appendleft",
        "extend",
        "extendleft",
        "insert",
        "add",
        "update",
        "setdefault",
        "sort",
        "reverse",
        "rotate",
    ),
    *("pop", "popleft", "popitem", "remove", "discard", "clear", "subtract"),
    *("difference_update", "intersection_update", "symmetric_difference_update"),
}
_CHANGING_FIRST_ARGUMENT = {"heappush", "heappop", "heapify", "heapreplace", "heappushpop", "shuffle", "insort"}
_WITHIN = {"get", "setdefault", "values", "items"}
"""Methods that return parts of an object; a change of such a part is a change of the object."""


class Root(NamedTuple):
    """What an expression begins with: an attribute of the object, of its class, or a variable of the module."""

    of: str
    name: str


OBJECT, CLASS, MODULE = "object", "class", "module"


class Target(NamedTuple):
    """What is changed: the object at `path`, attribute by attribute from the root; if `deep`, something within it."""

    root: Root
    path: tuple[str, ...] = ()
    deep: bool = False

    @property
    def whole_path(self) -> tuple[str, ...]:
        return (self.root.name, *self.path)

    def changes(self, path: tuple[str, ...], is_element: bool) -> bool:
        """Return whether the object at `path` is changed, or an element of it."""
        own = self.whole_path
        if self.deep and path[: len(own)] == own:
            return True
        return not is_element and own[: len(path)] == path


class Uses(msgspec.Struct):
    """The uses in some methods. Changes have the place of the first one; `called` are calls of other methods.

    `assigned` are the attributes of the object that are assigned.
    """

    mentioned: set[Root] = msgspec.field(default_factory=set)
    changed: dict[Target, str] = msgspec.field(default_factory=dict)
    called: dict[tuple[Target, str], str] = msgspec.field(default_factory=dict)
    assigned: set[str] = msgspec.field(default_factory=set)
    calls_super: bool = False


class ClassUses:
    """The uses of all methods of `kind`, without those that its base class `without` has."""

    def __init__(self, kind: type, without: type, sources: "Sources") -> None:
        self._methods: dict[str, list[Uses]] = {}
        classes = [one for one in kind.__mro__ if one not in without.__mro__]
        names = frozenset(one.__name__ for one in classes)
        for one in classes:
            for name, function, has_self in _functions(one):
                node = sources.find(function)
                overriding = self._methods.setdefault(name, [])
                if node is not None and all(one.calls_super for one in overriding):
                    overriding.append(_Reader(node, function, names, has_self).uses)

    def whole(self) -> Uses:
        """Return the uses of all methods."""
        return self.of(*self._methods)

    def of(self, *methods: str) -> Uses:
        """Return the uses of these methods, and of the methods that they call on the object."""
        found = Uses()
        waiting, seen = list(methods), set(methods)
        while waiting:
            for one in self._methods.get(waiting.pop(), []):
                found.mentioned |= one.mentioned
                found.assigned |= one.assigned
                found.changed = one.changed | found.changed
                found.called = one.called | found.called
                new = {root.name for root in one.mentioned if root.of != MODULE} & self._methods.keys() - seen
                waiting += new
                seen |= new
        return found


_Function = ast.FunctionDef | ast.Lambda


class Sources:
    """The functions in source files; each file is read once."""

    def __init__(self) -> None:
        self._files: dict[str, dict[tuple[str, int], _Function]] = {}

    def find(self, function: FunctionType) -> _Function | None:
        """Return the syntax tree of a function; None if its source is not known."""
        code = function.__code__
        if code.co_filename not in self._files:
            self._files[code.co_filename] = _functions_in(code.co_filename)
        return self._files[code.co_filename].get((code.co_name, code.co_firstlineno))


def _functions(kind: type) -> Iterator[tuple[str, FunctionType, bool]]:
    """Yield each method and property with its name, and whether its first argument is the object."""
    for name, value in vars(kind).items():
        found: Any = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        found = inspect.unwrap(found) if callable(found) else found
        if isinstance(found, FunctionType):
            yield name, found, not isinstance(value, staticmethod | classmethod)


def _names_in(code: CodeType) -> set[str]:
    """Return the names that a function, and the functions in it, look up outside of themselves."""
    inner = [one for one in code.co_consts if isinstance(one, CodeType)]
    local = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
    return ({*code.co_names} - local).union(*map(_names_in, inner))


def _functions_in(file: str) -> dict[tuple[str, int], _Function]:
    """Return the functions of a source file, by name and first line."""
    linecache.checkcache(file)
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError):
        return {}
    found: dict[tuple[str, int], _Function] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            first = node.decorator_list[0].lineno if node.decorator_list else node.lineno
            found[node.name, first] = node
        elif isinstance(node, ast.Lambda):
            found["<lambda>", node.lineno] = node
    return found


def _within(begin: Target, path: tuple[str, ...], deep: bool) -> Target:
    """Return what lies at `path` from `begin`. Below an element, paths are not followed."""
    return begin if begin.deep else Target(begin.root, (*begin.path, *path), deep)


class _Reader(ast.NodeVisitor):
    """Reads one method."""

    def __init__(self, node: _Function, function: FunctionType, classes: frozenset[str], has_self: bool) -> None:
        self.uses = Uses()
        self._file = function.__code__.co_filename
        self._classes = classes
        self._globals: set[str] = set()
        self._aliases: dict[str, Target] = {}
        arguments = [one.arg for one in (*node.args.posonlyargs, *node.args.args)]
        self._self = arguments[0] if arguments and has_self else ""
        self._variables = {
            name
            for name in _names_in(function.__code__) & function.__globals__.keys()
            if not isinstance(function.__globals__[name], ModuleType | type)
            and not callable(function.__globals__[name])
        }
        for one in node.body if isinstance(node, ast.FunctionDef) else [node.body]:
            self.visit(one)

    def visit_Global(self, node: ast.Global) -> None:
        self._globals.update(node.names)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if self._is_self(node.value):
            self.uses.mentioned.add(Root(OBJECT, node.attr))
        elif self._is_class(node.value):
            self.uses.mentioned.add(Root(CLASS, node.attr))
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        self.uses.calls_super |= node.id == "super"
        if node.id in self._variables:
            self.uses.mentioned.add(Root(MODULE, node.id))

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self._assign(target, node.value)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._assign(node.target, node.value)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._change(self._target(node.target), node)
        self.generic_visit(node)

    def visit_Delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            self._assign(target, None)
        self.generic_visit(node)

    def visit_For(self, node: ast.For) -> None:
        target = self._target(node.iter)
        root = target._replace(deep=True) if target is not None else None
        for one in ast.walk(node.target):
            if isinstance(one, ast.Name):
                self._alias(one.id, root)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        function = node.func
        if isinstance(function, ast.Attribute):
            target = self._target(function.value)
            if function.attr in _CHANGING:
                self._change(target, node)
            elif target is not None:
                self.uses.called.setdefault((target, function.attr), place_of_line(self._file, node.lineno))
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        if name in _CHANGING_FIRST_ARGUMENT and node.args:
            self._change(self._target(node.args[0]), node)
        self.generic_visit(node)

    def _assign(self, target: ast.expr, value: ast.expr | None) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            for one in target.elts:
                self._assign(one, None)
        elif isinstance(target, ast.Name):
            if target.id in self._globals:
                self._change(Target(Root(MODULE, target.id)), target)
            else:
                self._alias(target.id, self._target(value) if value is not None else None)
        elif isinstance(target, ast.Attribute) and self._is_self(target.value):
            self.uses.assigned.add(target.attr)
        elif isinstance(target, ast.Attribute) and self._is_class(target.value):
            self._change(Target(Root(CLASS, target.attr)), target)
        elif isinstance(target, ast.Attribute | ast.Subscript):
            self._change(self._target(target.value), target)

    def _alias(self, name: str, target: Target | None) -> None:
        if target is not None:
            self._aliases[name] = target
        else:
            self._aliases.pop(name, None)

    def _change(self, target: Target | None, node: ast.expr | ast.stmt) -> None:
        if target is not None:
            self.uses.changed.setdefault(target, place_of_line(self._file, node.lineno))

    def _target(self, node: ast.expr) -> Target | None:
        """Return the object that an expression such as `self.book.pages[3].lines` is, or is within."""
        path: tuple[str, ...] = ()
        deep = False
        while True:
            if isinstance(node, ast.Name):
                begin = self._aliases.get(node.id)
                if begin is None and node.id in self._variables:
                    begin = Target(Root(MODULE, node.id))
                return _within(begin, path, deep) if begin is not None else None
            if isinstance(node, ast.Attribute):
                if self._is_self(node.value):
                    return Target(Root(OBJECT, node.attr), path, deep)
                if self._is_class(node.value):
                    return Target(Root(CLASS, node.attr), path, deep)
                path = (node.attr, *path)
                node = node.value
            elif isinstance(node, ast.Subscript):
                path, deep, node = (), True, node.value
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _WITHIN:
                path, deep, node = (), True, node.func.value
            else:
                return None

    def _is_class(self, node: ast.expr) -> bool:
        """Return whether an expression is the class: its name, `type(self)` or `self.__class__`."""
        if isinstance(node, ast.Name):
            return node.id in self._classes or node.id == "cls"
        if isinstance(node, ast.Attribute):
            return node.attr == "__class__" and self._is_self(node.value)
        is_type = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "type"
        return is_type and len(node.args) == 1 and self._is_self(node.args[0])  # type: ignore[attr-defined]

    def _is_self(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id == self._self

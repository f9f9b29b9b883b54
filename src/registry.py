"""Names for interchangeable parts: layers, measures, alpha initialisers, datasets.

A part is registered by a decorator and built from a *node*, a mapping of `name` plus options. The part's signature
defines the options and their defaults; values known only at run time (`d_model`, the order N) are passed to `build`.
Built-in parts register when their package is imported, which happens at the first look-up; parts of other packages are
found through `imports=[my_pkg.alphas]` or an entry point.
"""

from __future__ import annotations

import importlib
import inspect
import math
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from importlib.metadata import entry_points
from typing import Any, TypeVar

from .errors import UsageError, did_you_mean, unknown
from .ranges import LARGEST_INTEGER, shown

Part = TypeVar("Part", bound=Callable[..., Any])


class Registry:
    """One kind of part.

    Args:
        kind: word for a part in messages ("layer").
        package: package whose import registers the built-in parts.
    Entry points of the group `fractal_ssm.<kind>s` are loaded at the first look-up as well.
    """

    def __init__(self, kind: str, package: str):
        self.kind = kind
        self._article = "An" if kind[0] in "aeiou" else "A"
        self._package = package
        self._parts: dict[str, Callable[..., Any]] = {}
        self._loaded = False

    def register(self, name: str) -> Callable[[Part], Part]:
        """Decorator: make a class or function known as `name`.

        Raises:
            UsageError: the name is empty or not a string, another part holds it, or the signature ends in `**kwargs`
                (which would swallow a misspelt option). Registering the same qualified name again replaces the part,
                because notebooks reload.
        """
        if not isinstance(name, str) or not name:
            raise UsageError(
                f"{self._article} {self.kind} is registered under a name, as in @register_{self.kind}('mine'), "
                f"got {name!r}."
            )

        def decorate(part: Part) -> Part:
            held = self._parts.get(name)
            if held is not None and _qualified(held) != _qualified(part):
                raise UsageError(
                    f"The {self.kind} name '{name}' is taken by {_qualified(held)}; "
                    f"{_qualified(part)} needs another name."
                )
            for parameter in inspect.signature(part).parameters.values():
                if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                    raise UsageError(
                        f"{_qualified(part)} takes **{parameter.name}, so a misspelt option would pass unnoticed. "
                        f"Name every option of a registered {self.kind} in its signature."
                    )
            self._parts[name] = part
            return part

        return decorate

    def names(self) -> list[str]:
        """All known names, sorted; loads the built-in parts and the entry points."""
        self._load()
        return sorted(self._parts)

    def get(self, name: str) -> Callable[..., Any]:
        """The part registered as `name`.

        Raises:
            UsageError: unknown name; the message lists the known ones, the nearest, and how to add one.
        """
        self._load()
        if not isinstance(name, str) or name not in self._parts:
            raise unknown(
                self.kind,
                name,
                self._parts,
                f"{self._article} {self.kind} of your own is found when its module is named in imports=[...] "
                f"or as an entry point 'fractal_ssm.{self.kind}s'.",
            )
        return self._parts[name]

    def options(self, name: str, runtime: Iterable[str] = ()) -> list[str]:
        """Names of a part's options, without those passed at run time."""
        parameters = inspect.signature(self.get(name)).parameters
        return [key for key in parameters if key not in set(runtime)]

    def check(self, node: Mapping[str, Any], runtime: Iterable[str] = ()) -> None:
        """Refuse a node whose name or options the part does not have; builds nothing.

        Raises:
            UsageError: not a mapping, no `name`, an unknown name, an unknown option or a missing one, or a class with
                abstract methods.
        """
        if not isinstance(node, Mapping):
            raise UsageError(
                f"{self._article} {self.kind} is built from a mapping of 'name' and options, such as "
                f"{{'name': {str(node)!r}}}, got {node!r}. Known names: {', '.join(self.names())}."
            )
        if not isinstance(node.get("name"), str):
            raise UsageError(
                f"{self._article} {self.kind} needs a 'name', got {dict(node)}. Known: {', '.join(self.names())}."
            )
        name, runtime = node["name"], set(runtime)
        if unfinished := sorted(getattr(self.get(name), "__abstractmethods__", ())):
            raise UsageError(
                f"The {self.kind} '{name}' ({_qualified(self.get(name))}) lacks {', '.join(unfinished)}, which its "
                f"base class asks for. Define them in the class."
            )
        options = {key: value for key, value in node.items() if key != "name"}
        allowed = check_names(f"The {self.kind} '{name}'", self.get(name), options, runtime)
        parameters = inspect.signature(self.get(name)).parameters
        missing = [
            key
            for key in allowed
            if parameters[key].default is inspect.Parameter.empty
            and parameters[key].kind is not inspect.Parameter.VAR_POSITIONAL
            and key not in node
        ]
        if missing:
            raise UsageError(f"The {self.kind} '{name}' needs {', '.join(missing)}.")

    def build(self, node: Mapping[str, Any], **runtime: Any) -> Any:
        """Call the part of `node` with its options and the run-time facts that its signature names."""
        self.check(node, runtime)
        part = self.get(node["name"])
        wanted = inspect.signature(part).parameters
        options = {key: value for key, value in node.items() if key != "name"}
        return part(**options, **{key: value for key, value in runtime.items() if key in wanted})

    def _load(self) -> None:
        if self._loaded:
            return
        # Set before importing: a built-in module may look up a name while it is imported.
        self._loaded = True
        try:
            importlib.import_module(self._package)
            for point in entry_points(group=f"fractal_ssm.{self.kind}s"):
                point.load()
        except BaseException:
            self._loaded = False
            raise


def check_names(kind: str, part: Callable[..., Any], options: Iterable[str], runtime: Collection[str]) -> list[str]:
    """Names of the options of `part`, without those passed at run time; refuses other `options`.

    Raises:
        UsageError: names the option, the known ones and the nearest.
    """
    allowed = [key for key in inspect.signature(part).parameters if key not in runtime]
    for key in options:
        if key not in allowed:
            near = did_you_mean(key, allowed)
            raise UsageError(f"{kind} has no option '{key}'. Its options: {', '.join(allowed) or 'none'}.{near}")
    return allowed


def check_options(kind: str, part: Callable[..., Any], options: Mapping[str, Any], runtime: Collection[str]) -> None:
    """Refuse options that the signature of `part` does not have, or values of another type than it annotates.

    For options from a configuration, whose values come from YAML. Only plain annotations (bool, int, float, str, alone
    or with None) are checked; the part checks the rest itself.

    Raises:
        UsageError: names the option, the value and what is allowed.
    """
    check_names(kind, part, options, runtime)
    hints = typing.get_type_hints(part.__init__ if inspect.isclass(part) else part)
    for key, value in options.items():
        hint = hints.get(key)
        is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
        kinds = typing.get_args(hint) if is_union else (hint,)
        if not all(kind_of in (bool, int, float, str, type(None)) for kind_of in kinds):
            continue
        # YAML reads 1 as int where a float is meant; a bool does not count as a number.
        fits = type(value) in kinds or (float in kinds and type(value) is int)
        if not fits:
            names = " or ".join("null" if kind_of is type(None) else kind_of.__name__ for kind_of in kinds)
            raise UsageError(f"{kind} takes {key} as {names}, got {shown(value)}.")
        if isinstance(value, float) and not math.isfinite(value):
            raise UsageError(f"{kind} takes {key} as a finite number, got {value}.")
        if isinstance(value, int) and abs(value) > LARGEST_INTEGER:
            raise UsageError(f"{kind} takes {key} as a number up to 2**53 = {LARGEST_INTEGER}, got {shown(value)}.")


def _qualified(part: Callable[..., Any]) -> str:
    return f"{part.__module__}.{part.__qualname__}"


layers = Registry("layer", "fractal_ssm.models")
measures = Registry("measure", "fractal_ssm.hippo")
alphas = Registry("alpha", "fractal_ssm.models.fractal.alpha")
datasets = Registry("dataset", "fractal_ssm.data")

register_layer = layers.register
register_measure = measures.register
register_alpha = alphas.register
register_dataset = datasets.register
list_layers = layers.names
list_measures = measures.names
list_alphas = alphas.names
list_datasets = datasets.names


def import_plugins(modules: Iterable[str]) -> None:
    """Import the modules named in `imports=[...]`, whose decorators then register their parts.

    Raises:
        UsageError: not the name of a module, or no such module. An exception raised *inside* the module is not changed.
    """
    for module in modules:
        if not isinstance(module, str) or not all(part.isidentifier() for part in module.split(".")):
            raise UsageError(f"imports takes names of Python modules, imports=[my_package.layers], got {module!r}.")
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            # `import a.b` fails with name 'a' or 'a.b' when the plug-in itself is missing.
            if error.name is None or not (module == error.name or module.startswith(error.name + ".")):
                raise
            raise UsageError(
                f"imports names '{module}', but there is no module '{error.name}' on the Python path. "
                f"Install the package, or run with PYTHONPATH set to the folder that holds it."
            ) from error

"""
Names of locks with fields, which are filled from the arguments of a call.

A template is checked against the parameters of the function when that is decorated, as far
as possible.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from string import Formatter
from typing import Self

from redlock_aio._rules.validation import described, of_type


class Template:
    """A name with fields, as for `str.format`."""

    __slots__ = ("_roots", "_text")

    def __init__(self, text: str) -> None:
        self._text = of_type(text, str, name="template")
        try:
            self._roots = _roots(text)
        except ValueError as error:
            raise self._broken(error) from None

    def __repr__(self) -> str:
        return repr(self._text)

    def _broken(self, error: ValueError) -> ValueError:
        return ValueError(f"template {self!r} is broken: {error}")

    @property
    def fixed(self) -> bool:
        """Whether the name has no fields, and therefore is the same for all calls."""
        return not self._roots

    def check(self, parameters: Iterable[str], called: str) -> None:
        """Raise a `ValueError` if a function with these parameters can't fill the template."""
        for root in self._roots:
            if root not in parameters:
                raise ValueError(
                    f"template {self!r} has a field {root!r}, which is no parameter of"
                    f" {called}({', '.join(parameters)})"
                )
        try:
            # Formatting finds mistakes behind the roots: here with arguments that have every
            # attribute and item, instead of at the first call.
            self._text.format_map(dict.fromkeys(self._roots, _Anything()))
        except ValueError as error:
            raise self._broken(error) from None

    def filled(self, arguments: Mapping[str, object]) -> str:
        """Fill the fields; raise a `TypeError` if one would have an address in memory."""
        name = self._text.format_map(arguments)
        if "0x" in name:
            addresses = {int(digits, 16) for digits in _ADDRESS.findall(name)}
            self._refuse_addresses(arguments, addresses)
        return name

    def _refuse_addresses(self, arguments: Mapping[str, object], addresses: set[int]) -> None:
        # The text of an object without `__str__`: `<Order object at 0x7f0e...>`. Two calls for the
        # same order would lock two names, and exclude nobody.
        for _, field, _, _ in Formatter().parse(self._text):
            if field is None:
                continue
            value, _ = Formatter().get_field(field, (), arguments)
            for path, each in _parts(value):
                if id(each) in addresses:
                    part = field + "".join(f"[{key}]" for key in path)
                    raise TypeError(
                        f"field {field!r} would be the address in memory of {described(each)}, and"
                        " each object would lock another name; name what identifies it, such as"
                        f" '{part}.id'"
                    )


_ADDRESS = re.compile("0x([0-9a-f]+)", re.IGNORECASE)


def _parts(value: object) -> Iterator[tuple[tuple[object, ...], object]]:
    """Yield *value* and all that is in it, if it is a container, each with the keys to it."""
    left: list[tuple[tuple[object, ...], object]] = [((), value)]
    seen = set[int]()
    while left:
        path, each = left.pop()
        if id(each) in seen:
            continue  # a container may be in itself
        seen.add(id(each))
        yield path, each
        if isinstance(each, dict):
            left += [(path, key) for key in each]
            left += [((*path, key), its) for key, its in each.items()]
        elif isinstance(each, list | tuple):
            left += [((*path, number), its) for number, its in enumerate(each)]
        elif isinstance(each, set | frozenset):
            left += [(path, its) for its in each]


def _roots(text: str) -> list[str]:
    """Return the first name in each field of a template, which must be a parameter."""
    roots = []
    for _, field, spec, _ in Formatter().parse(text):
        if field is not None:
            if "{" in (spec or ""):
                raise ValueError(f"the field {field!r} contains another field")
            roots.append(re.split(r"[.\[]", field, maxsplit=1)[0])
    return roots


class _Anything:
    """An argument that has every attribute and item, and takes any format."""

    def __getattribute__(self, name: str) -> Self:
        return self

    def __getitem__(self, key: object) -> Self:
        return self

    def __format__(self, spec: str) -> str:
        return ""


class Names:
    """The names that a function's calls lock: templates, filled from the arguments."""

    __slots__ = (
        "_by_name", "_called", "_defaults", "_positional", "_required", "_signature", "_templates",
    )  # fmt: skip

    def __init__(self, function: Callable[..., object], templates: Sequence[Template]) -> None:
        self._called = getattr(function, "__qualname__", repr(function))
        self._signature = inspect.signature(function)
        self._templates = templates
        parameters = self._signature.parameters
        for template in templates:
            template.check(parameters, self._called)
        kinds = {name: parameter.kind for name, parameter in parameters.items()}
        self._positional = [name for name, kind in kinds.items() if kind <= _EITHER]
        self._by_name = {name for name, kind in kinds.items() if kind in (_EITHER, _KEYWORD)}
        # The values of arguments that a call leaves out.
        self._defaults: dict[str, object] = {
            name: _LEFT_OUT.get(parameter.kind, parameter.default)
            for name, parameter in parameters.items()
        }
        self._required = {
            name for name, left_out in self._defaults.items() if left_out is inspect.Parameter.empty
        }

    def of(self, args: tuple[object, ...], kwargs: dict[str, object]) -> list[str]:
        """Return the names that a call with these arguments locks."""
        arguments = self._arguments(args, kwargs)
        names = []
        for template in self._templates:
            try:
                names.append(template.filled(arguments))
            except Exception as error:
                error.add_note(f"while the template {template!r} of {self._called}() was filled")
                raise
        return names

    def _arguments(self, args: tuple[object, ...], kwargs: dict[str, object]) -> dict[str, object]:
        # `Signature.bind` costs a tenth of a lock. It is left out for calls that obviously
        # fit; for all others it decides, and makes the error.
        given = dict(zip(self._positional, args))  # noqa: B905 - counted below, at half the price
        if kwargs:
            given |= kwargs
        if (
            len(given) < len(args) + len(kwargs)  # too many arguments, or one twice
            or not self._required.issubset(given)
            or not self._by_name.issuperset(kwargs)
        ):
            try:
                given = self._signature.bind(*args, **kwargs).arguments
            except TypeError as error:
                raise TypeError(f"{self._called}(): {error}") from None
            # Python 3.13.0 overlooks one by position if `**kwargs` has its name.
            for name in self._required.difference(given):
                raise TypeError(f"{self._called}(): missing a required argument: {name!r}")
        return self._defaults | given


_EITHER = inspect.Parameter.POSITIONAL_OR_KEYWORD
_KEYWORD = inspect.Parameter.KEYWORD_ONLY
_LEFT_OUT: dict[object, object] = {
    inspect.Parameter.VAR_POSITIONAL: (),
    inspect.Parameter.VAR_KEYWORD: {},
}

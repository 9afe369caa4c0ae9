"""Options: fields of pydantic models, each with its help, its group and its spelling.

Each option is declared once, as a field whose annotation holds an `Option` and below which stands
its help. The flags of the command line, the keywords of Python, the keys of a run file and the
reference page are generated from the fields.
"""

from __future__ import annotations

import ast
import csv
import re
import sys
import types
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from numbers import Integral
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Generic,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from slicebeam.metrics.errors import OptionError, flag, nearest_hint
from slicebeam.metrics.kinds import TFMA, split_outside

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    StrPath = str | os.PathLike[str]
    Value = TypeVar("Value")
    Argument = TypeVar("Argument")

    class Converted(Generic[Value, Argument]):
        """A field whose keyword in Python takes more than what its value becomes.

        Type checkers know it of the protocol of descriptors.
        """

        def __get__(self, options: object, model: object) -> Value: ...
        def __set__(self, options: object, argument: Argument) -> None: ...

    Texts = Sequence[str]
    _Path = Converted[str, StrPath]
    _OutputPath = Converted[str, StrPath | None]
    _OptionalPath = Converted[str | None, StrPath | None]
    _Paths = Converted[tuple[str, ...], StrPath | Sequence[StrPath]]
    _Pairs = Converted[tuple[str, ...], Sequence[str] | Mapping[str, object]]
    _Integers = Converted[tuple[int, ...], int | str | Sequence[int]]
    _NumberText = Converted[str | None, str | float | None]
else:
    Texts = _Paths = _Pairs = tuple[str, ...]
    _Path = _OutputPath = str
    _OptionalPath = _NumberText = str | None
    _Integers = tuple[int, ...]

COLUMN, COLUMNS = "<column>", "<columns>"
FILE, FOLDER, PATH = "<file>", "<folder>", "<path>"

# The groups of a page of help, in this order.
PANELS = [
    "Data",
    "Known slices",
    "Definition",
    "Embeddings",
    "Labels",
    "Models",
    "Old answers",
    "New answers",
    "Budget",
    "Features",
    "Slices",
    "Statistics",
    "Search",
    "Output",
    "Engine",
]
# The default of an option that has none, though Python need not name it.
REQUIRED: Any = ...
_FLAG = re.compile(r"--([a-z][a-z-]*[a-z])")
_DEFAULT = re.compile(r" \[default: (.*)\]$")


@dataclass(frozen=True)
class Option:
    """The properties of an option besides its type, default and bounds, which its field has.

    Those of the types below, such as `Column`, hold for each field of the type that says nothing else.

    Attributes
    ----------
    panel : the group in the help that it stands in, of `PANELS`
    help : a sentence that can be read on its own, where it does not stand below the field; either ends
        with ``[default: …]`` in words where the default is not a constant
    metavar : the placeholder of the value; None for the name of its type
    flags : its spelling on the command line where that is not its name
    comes_first : before the others of its group
    is_argument : without a flag on the command line
    by_commas : repeated, or separated by commas
    has_placeholders : dates and environment variables stand in it in a run file
    keeps_variables : the names of its environment variables stay in the configuration
    takes_numbers : a number stands for its text in a run file and in Python
    is_overridable : ``slicebeam run`` takes it in place of the file's
    """

    panel: str = ""
    help: str = ""
    metavar: str | None = None
    flags: tuple[str, ...] = ()
    comes_first: bool = False
    is_argument: bool = False
    by_commas: bool = False
    has_placeholders: bool = False
    keeps_variables: bool = False
    takes_numbers: bool = False
    is_overridable: bool = False


# How values are written. A path may have placeholders.
Column = Annotated[str, Option(metavar=COLUMN)]
Names = Annotated[Texts, Option(by_commas=True)]
Columns = Annotated[Names, Option(metavar=COLUMNS)]
SliceName = Annotated[str, Option(metavar="<slice>")]
Model = Annotated[str, Option(metavar="<model>", has_placeholders=True, is_overridable=True)]
File = Annotated[_Path, Option(metavar=FILE, has_placeholders=True)]
OptionalFile = Annotated[_OptionalPath, Option(metavar=FILE, has_placeholders=True)]
Folder = Annotated[_Path, Option(metavar=FOLDER, has_placeholders=True)]
OptionalFolder = Annotated[_OptionalPath, Option(metavar=FOLDER, has_placeholders=True)]
Output = Annotated[_OutputPath, Option(metavar=FOLDER, has_placeholders=True, is_overridable=True)]
Paths = Annotated[_Paths, Option(metavar=PATH, has_placeholders=True)]
Pairs = Annotated[_Pairs, Option(metavar="<key=value>")]
Integers = Annotated[_Integers, Option(metavar="<numbers>", by_commas=True)]
NumberText = Annotated[_NumberText, Option(takes_numbers=True)]
Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(gt=0, lt=1)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]


@dataclass(frozen=True)
class Rule:
    """What each of some options has to do with others; both are words of a text.

    Words such as ``method=plus`` are options with a value. ``why`` is for the error.
    """

    names: str
    others: str = ""
    why: str = ""

    def check(self, options: Options) -> None:
        """Refuse options that break the rule."""
        for name in self.names.split():
            if (text := self._broken(name, options)) is not None:
                raise OptionError(text)

    def _broken(self, name: str, options: Options) -> str | None:
        raise NotImplementedError


class Requires(Rule):
    """An option has no effect without one of the others."""

    def _broken(self, name: str, options: Options) -> str | None:
        others = self.others.split()
        if not options.has(name) or any(map(options.is_on, others)):
            return None
        why = self.why and f": {self.why}"
        return f"{flag(name).replace('=', ' ')} needs {any_flag(others)}{why}"


class Excludes(Rule):
    """An option and any of the others exclude each other; ``why`` says something of both."""

    def _broken(self, name: str, options: Options) -> str | None:
        other = next(filter(options.has, self.others.split()), None)
        if other is None or not options.has(name):
            return None
        if self.why:
            return f"{flag(name)} and {flag(other)} {self.why}; choose one"
        return f"{flag(other)} has no effect with {flag(name).replace('=', ' ')}; leave one out"


class Needed(Rule):
    """One of the options is needed, unless one of the others has an effect; ``why`` says what is missing."""

    def check(self, options: Options) -> None:
        """Refuse options that break the rule."""
        names = self.names.split()
        if not any(map(options.is_on, [*names, *self.others.split()])):
            raise OptionError(f"{self.why}: give {any_flag(names)}")


class Differs(Rule):
    """An option names another column than each of the others."""

    def _broken(self, name: str, options: Options) -> str | None:
        column = getattr(options, name)
        same = (rival for rival in self.others.split() if getattr(options, rival) == column)
        if not column or (other := next(same, None)) is None:
            return None
        return f"{flag(other)} {column!r} is the {name.replace('_', ' ')}; name another column"


class Options(BaseModel):
    """Options of a command; the names of the fields are those of the flags, ``_`` for ``-``.

    Fields with ``init=False`` are no keywords of Python. A field without an `Option` is not the
    user's; with ``exclude`` it takes that of a base class away. ``rules``: which options go together.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    rules: ClassVar[tuple[Rule, ...]] = ()

    def has(self, name: str) -> bool:
        """Return whether an option was given, and not as nothing; ``method=plus``: with this value."""
        name, _, chosen = name.partition("=")
        value = getattr(self, name)
        is_empty = value is None or value is False or value == ()
        return name in self.model_fields_set and not is_empty and chosen in ("", value)

    def is_on(self, name: str) -> bool:
        """Return whether an option has an effect: it has a value, or was given one that is wrong, such as 0."""
        value = getattr(self, name)
        return bool(value) or (self.has(name) and value != type(self).model_fields[name].default)

    # Before pydantic compares with the type, whose message has no nearest name.
    @field_validator("*", mode="before")
    @classmethod
    def _is_choice(cls, value: Any, info: ValidationInfo) -> Any:
        if (field := declared(cls).get(str(info.field_name))) is not None:
            field.check_choice(value)
        return value

    @model_validator(mode="after")
    def _keeps_rules(self) -> Options:
        for kind in type(self).__mro__:
            for rule in vars(kind).get("rules", ()):
                rule.check(self)
        return self


@dataclass(frozen=True)
class OptionField:
    """An option of a model; ``kind`` is its type without bounds and None, ``metadata`` has the bounds."""

    name: str
    model: type[BaseModel]
    kind: Any
    default: Any
    is_required: bool
    is_nullable: bool
    is_keyword: bool
    metadata: list[Any]
    option: Option

    @property
    def help(self) -> str:
        """A sentence that can be read on its own."""
        return _DEFAULT.sub("", self._text)

    @property
    def default_words(self) -> str:
        """The default in words; empty for a constant."""
        match = _DEFAULT.search(self._text)
        return match[1] if match else ""

    @property
    def _text(self) -> str:
        classes = (_texts(kind.__module__).get(kind.__name__, {}) for kind in self.model.__mro__)
        return self.option.help or next(texts[self.name] for texts in classes if self.name in texts)

    @property
    def choices(self) -> tuple[str, ...]:
        """The words that it takes; empty for any."""
        return get_args(self.kind) if get_origin(self.kind) is Literal else ()

    def check_choice(self, value: Any) -> None:
        """Refuse a word that is not one of the choices."""
        if self.choices and value is not None and value not in self.choices:
            hint = nearest_hint(str(value), self.choices)
            raise OptionError(
                f"{flag(self.name)} {value!r}{hint} choose from {', '.join(self.choices)}"
            )

    @property
    def is_list(self) -> bool:
        """Whether it may be given several times."""
        return get_origin(self.kind) is tuple

    @property
    def takes_mapping(self) -> bool:
        """Whether its values are pairs, such as ``key=value``."""
        return self.is_list and "=" in (self.option.metavar or "")

    @property
    def flags(self) -> tuple[str, ...]:
        """Its spelling on the command line; none for an argument."""
        if self.option.is_argument:
            return ()
        return self.option.flags or (flag(self.name),)


def checked(read: Callable[[str], object]) -> AfterValidator:
    """Return the check of a text that ``read`` must be able to read."""

    def check(value: Any) -> Any:
        if value is not None:
            read(value)
        return value

    return AfterValidator(check)


def default(value: Any) -> Any:
    """Return the default of a field that is `Converted`, which has no type of its own."""
    return value


def any_flag(names: Sequence[str]) -> str:
    """Return the flags of options of which one is needed.

    >>> any_flag(["label", "score", "model"])
    '--label, --score or --model'
    """
    *others, last = map(flag, names)
    return f"{', '.join(others)} or {last}" if others else last


def with_keywords(text: str, quote: str = "") -> str:
    """Return a text with the keywords of Python in place of flags.

    >>> with_keywords("--max-cross-size 20: it must be at most 10")
    'max_cross_size 20: it must be at most 10'
    """
    return _FLAG.sub(lambda name: f"{quote}{name[1].replace('-', '_')}{quote}", text)


@cache
def declared(model: type[BaseModel]) -> dict[str, OptionField]:
    """Return the options of a model by their names, in the order of its fields."""
    fields = {}
    for name, field in model.model_fields.items():
        kind, is_nullable, inner = _plain(field.annotation)
        metadata = [*inner, *field.metadata]
        options = [vars(part) for part in metadata if isinstance(part, Option)]
        option = Option(**{key: value for part in options for key, value in part.items() if value})
        if not option.panel:
            continue
        fields[name] = OptionField(
            name=name,
            model=model,
            kind=kind,
            default=None if field.is_required() else field.default,
            is_required=field.is_required(),
            is_nullable=is_nullable,
            is_keyword=field.init is not False,
            metadata=metadata,
            option=option,
        )
    return fields


def first_argument(model: type[BaseModel]) -> str:
    """Return the option that is the first argument of the function of Python."""
    fields = declared(model).values()
    return next(field.name for field in fields if field.is_required and not field.is_keyword)


def by_panel(fields: list[OptionField]) -> dict[str, list[OptionField]]:
    """Return options by the groups of a help page, the most important first."""
    panels: dict[str, list[OptionField]] = {
        title: [] for title in ("Arguments", "Required", *PANELS)
    }
    for field in sorted(fields, key=lambda field: not field.option.comes_first):
        usage = "Arguments" if field.option.is_argument else "Required" if field.is_required else ""
        panels[usage or field.option.panel].append(field)
    return {title: chosen for title, chosen in panels.items() if chosen}


def listed(values: Sequence[str]) -> tuple[str, ...]:
    """Return the values of an option that is repeated or separated by commas.

    >>> listed(["a,b", '"c,d"'])
    ('a', 'b', 'c,d')
    """
    # As in CSV, quotes keep a comma that belongs to a name. Those in the brackets of a metric do so, too.
    try:
        return tuple(
            part
            for value in values
            for row in ([split_outside(value)] if TFMA in value else csv.reader([value]))
            for part in row or [""]
        )
    except csv.Error as error:
        raise OptionError(
            f"{','.join(values)!r} is not a list separated by commas ({error}); put names in quotes"
        ) from error


def split_lists(model: type[Options], flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return flags as they were given, with the values of those that commas separate."""
    fields = declared(model)
    return {
        name: listed(value) if name in fields and fields[name].option.by_commas else value
        for name, value in flags.items()
    }


def as_flag(where: str, field: OptionField, value: Any) -> Any:
    """Return a value as the flag of an option would have it."""
    if value is None:
        raise OptionError(f"{where}: the key has no value; give one or leave the key out")
    if field.takes_mapping and isinstance(value, dict):
        pairs = [(name, part if isinstance(part, list) else [part]) for name, part in value.items()]
        return tuple(f"{name}={_scalar(part)}" for name, parts in pairs for part in parts)
    if not field.is_list:
        return _single(where, field, value)
    if field.option.by_commas and isinstance(value, str):
        return listed([value])
    several = value if isinstance(value, (list, tuple)) else [value]
    return tuple(_single(where, field, part) for part in several)


@cache
def _texts(module: str) -> dict[str, dict[str, str]]:
    """Return the texts below the fields of the classes of a module."""
    path = getattr(sys.modules[module], "__file__", None)
    tree = ast.parse(Path(path).read_text("utf-8") if path else "")
    return {
        statement.name: {
            field.target.id: " ".join(text.value.value.split())
            for field, text in pairwise(statement.body)
            if isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
            and isinstance(text.value.value, str)
        }
        for statement in tree.body
        if isinstance(statement, ast.ClassDef)
    }


def _plain(annotation: Any) -> tuple[Any, bool, list[Any]]:
    """Return a type without None and bounds, whether None belongs to it, and the bounds."""
    if get_origin(annotation) is Annotated:
        kind, *inner = get_args(annotation)
        plain, is_nullable, more = _plain(kind)
        return plain, is_nullable, [*inner, *more]
    if get_origin(annotation) in (Union, types.UnionType):
        kinds = [part for part in get_args(annotation) if part is not type(None)]
        plain, _, inner = _plain(kinds[0])
        return plain, len(kinds) < len(get_args(annotation)), inner
    return annotation, False, []


def _single(where: str, field: OptionField, value: Any) -> Any:
    kind = get_args(field.kind)[0] if field.is_list else field.kind
    if field.option.takes_numbers and isinstance(value, (bool, int, float)):
        return _scalar(value)
    if kind is bool and not isinstance(value, bool):
        raise OptionError(f"{where}: {value!r} is neither true nor false")
    if kind is int and field.is_list and not isinstance(value, str):
        # Those of numpy are integers too.
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise OptionError(f"{where}: {value!r} is not a whole number")
        return int(value)
    if (kind is str or get_origin(kind) is Literal) and not isinstance(value, str):
        raise OptionError(f"{where}: {value!r} is not text; put it in quotes")
    if kind in (int, float) and isinstance(value, (bool, list, tuple, dict)):
        raise OptionError(f"{where}: {value!r} is not a number")
    return value


def _scalar(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

"""The command line of the commands: flags are generated from the fields of their options."""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from slicebeam.pipelines.commands.table import COMMANDS, SUBCOMMANDS, command_spec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slicebeam.pipelines.config.option_fields import OptionField

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
_EXAMPLE_WIDTH = 72
# The options that the help shows of the groups that most commands have; --help-all shows the others.
_SHARED = ("Data", "Models", "Features", "Statistics", "Search", "Output", "Engine")
COMMON = frozenset((
    "files", "data", "output", "label", "prediction", "score", "model", "baseline_prediction",
    "baseline_score", "positive_class", "features", "exclude_features", "weight", "group", "metric",
    "alternative", "max_cross_size", "since", "fail_on", "page", "as_json",
))  # fmt: skip


class PanelCommand(TyperCommand):
    """A command whose help shows its options in groups, and ends with an example."""

    panels: dict[str, list[str]]
    rare: frozenset[str]
    example: str

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the usage line; typer puts required arguments in braces."""
        return [one.replace("{", "").replace("}", "") for one in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options, a group after the other."""
        records = {one.name: one.get_help_record(ctx) for one in self.get_params(ctx)}
        for title, names in self.panels.items():
            rows = [(name, records.pop(name)) for name in names]
            if shown := [row for name, row in rows if name not in self.rare]:
                with formatter.section(title):
                    formatter.write_dl(shown)
        with formatter.section("Options" if not self.panels else "Help"):
            formatter.write_dl([one for one in records.values() if one is not None])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002  (typer's)
        """Write the example."""
        _write_example(self.example, formatter)


class CommandGroup(TyperGroup):
    """Commands that are made when they are invoked, or when their help is shown.

    ``within``: the command that they belong to; empty for the program's own.
    """

    def __init__(self, within: str = "", **attributes: Any) -> None:
        super().__init__(rich_markup_mode=None, context_settings=SETTINGS, **attributes)
        self.within = within
        self.specs = SUBCOMMANDS[within] if within else COMMANDS
        if not within:
            self.params.append(_version_option())
        # Names that a wrong one is compared with.
        self.commands = dict.fromkeys(self.specs)  # type: ignore[assignment]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments; ``slicebeam edit`` alone is no error."""
        return super().parse_args(ctx, args or (["--help"] if self.within == "edit" else []))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002  (typer's)
        """Return a command; None if there is none."""
        if cmd_name not in self.specs:
            return None
        if not self.within and cmd_name in SUBCOMMANDS:
            return _group(cmd_name)
        return make_command(f"{self.within} {cmd_name}".strip())

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """Write the commands, a group after the other."""
        width = max(map(len, self.specs))
        for group in dict.fromkeys(one.group for one in self.specs.values()):
            with formatter.section(group):
                formatter.write_dl(
                    [
                        (f"{name:<{width}}", one.summary)
                        for name, one in self.specs.items()
                        if one.group == group
                    ]
                )

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """Write the example."""
        if self.within:
            _write_example(COMMANDS[self.within].example, formatter)
        else:
            _write_example("slicebeam demo\nslicebeam search --help", formatter)


def program() -> CommandGroup:
    """Return the command ``slicebeam``."""
    return CommandGroup(
        name="slicebeam",
        help="Find the slices of evaluation data where a model is worse, or where an update changed "
        "it.",
        no_args_is_help=True,
    )


def _version_option() -> Any:
    """Return the flag ``--version``, as typer makes it of a signature."""
    single = typer.Typer(add_completion=False)

    @single.command()
    def _(
        *,
        _version: Annotated[
            bool,
            typer.Option(
                "--version",
                help="Print the version and exit.",
                callback=_print_version,
                is_eager=True,
                expose_value=False,
            ),
        ] = False,
    ) -> None: ...

    return get_command(single).params[0]


def _print_version(*, is_given: bool) -> None:
    if is_given:
        from importlib.metadata import version

        sys.stdout.write(f"slicebeam {version('slicebeam')}\n")
        raise typer.Exit


def make_command(name: str) -> typer.core.TyperCommand:
    """Return a command with its flags.

    ``name``: its words, such as ``search`` or ``edit rename``.
    """
    from slicebeam.pipelines.config.option_fields import by_panel

    spec = command_spec(name)
    fields = spec.fields()

    def callback(context: typer.Context, **_: Any) -> None:
        given = {key: value for key, value in context.params.items() if _was_given(context, key)}
        code = spec.execute(name, given, context.obj)
        if code:
            raise typer.Exit(code)

    rare = frozenset(one.name for one in fields if _is_rare(one)) if spec.configure else frozenset()
    parameters = list(map(_parameter, fields))
    if rare:
        parameters.append(_help_all(len(fields)))
    # typer reads the flags from the signature.
    callback.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context),
            *parameters,
        ]
    )
    callback.__annotations__ = {}
    single = typer.Typer(
        add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
    )
    single.command(name.rsplit(maxsplit=1)[-1], cls=PanelCommand, help=spec.help)(callback)
    command = get_command(single)
    if not isinstance(command, PanelCommand):
        raise TypeError(f"typer made a {type(command).__name__}")
    command.panels = {
        panel: [one.name for one in chosen] for panel, chosen in by_panel(fields).items()
    }
    command.example, command.rare = spec.example, rare
    return command


def _is_rare(field: OptionField) -> bool:
    return not field.is_required and field.name not in COMMON and field.option.panel in _SHARED


def _help_all(number: int) -> inspect.Parameter:
    flag = typer.Option(
        "--help-all",
        help=f"Show all {number} options and exit.",
        callback=_print_all,
        is_eager=True,
        expose_value=False,
    )
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter("help_all", kind, default=False, annotation=Annotated[bool, flag])


def _print_all(context: typer.Context, *, is_given: bool) -> None:
    if is_given and isinstance(context.command, PanelCommand):
        context.command.rare = frozenset()
        sys.stdout.write(f"{context.get_help()}\n")
        raise typer.Exit


def _group(name: str) -> CommandGroup:
    return CommandGroup(name, name=name, help=COMMANDS[name].help, no_args_is_help=True)


def _was_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _parameter(field: OptionField) -> inspect.Parameter:
    """Return the parameter of a function from which typer makes the flag."""
    kind = _flag_type(field)
    words = f"  [default: {field.option.default}]" if field.option.default else ""
    about: Any = {"help": field.help + words, "metavar": field.option.metavar}
    if field.option.is_argument:
        info: Any = typer.Argument(**about)
    else:
        info = typer.Option(*field.flags, **about)
    default: Any = inspect.Parameter.empty
    if not field.is_required:
        # What is shown as a default is one that is a constant.
        default = None if field.is_list or field.default == "" else field.default
        kind = kind | None if default is None else kind
    return inspect.Parameter(
        field.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind, info],
    )


def _flag_type(field: OptionField) -> Any:
    if field.is_list:
        # Numbers that commas separate are split later.
        return list[str]
    return field.kind if field.kind in (int, float, bool) else str


def _write_example(example: str, formatter: Any) -> None:
    indent = " " * formatter.current_indent
    with formatter.section("Example"):
        for line in example.splitlines():
            formatter.write(" \\\n".join(_wrapped(line, f"{indent}  ")) + "\n")


def _wrapped(command: str, indent: str) -> Iterator[str]:
    """Break a command line before flags, which stay with their values."""
    words, *flags = command.split(" --")
    line = indent + words
    for one in flags:
        if len(line) + len(one) > _EXAMPLE_WIDTH:
            yield line
            line = f"{indent} "
        line += f" --{one}"
    yield line

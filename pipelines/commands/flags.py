"""The command line of the commands: flags are made from the fields of their options."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from slicebeam.metrics.errors import nearest
from slicebeam.pipelines.commands.command import DataCommand
from slicebeam.pipelines.commands.table import COMMANDS, GROUPS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

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
_SHOWS_ALL = "slicebeam.help_all"


class PanelCommand(click.Command):
    """A command, by its words such as ``edit rename``; its help shows the options in groups, and an example."""

    def __init__(self, name: str) -> None:
        from slicebeam.pipelines.config.option_fields import by_panel

        self.words, self.spec = name, COMMANDS[name]
        fields = self.spec.fields()
        self.panels = by_panel(fields)
        is_long = isinstance(self.spec, DataCommand)
        self.rare = {
            field.name
            for field in fields
            if is_long
            and not (field.is_required or field.name in COMMON)
            and field.option.panel in _SHARED
        }
        parameters = list(map(_parameter, fields))
        if self.rare:
            parameters.append(
                click.Option(
                    ["--help-all"],
                    is_flag=True,
                    is_eager=True,
                    expose_value=False,
                    callback=_print_all,
                    help=f"Show all {len(fields)} options and exit.",
                )
            )
        super().__init__(
            name.rsplit(maxsplit=1)[-1], SETTINGS, params=parameters, help=self.spec.help
        )

    def invoke(self, ctx: click.Context) -> int:
        """Run the command with the flags that were given, and return the exit code."""
        on_command_line = click.core.ParameterSource.COMMANDLINE
        options = {
            name: value
            for name, value in ctx.params.items()
            if ctx.get_parameter_source(name) is on_command_line
        }
        return self.spec.execute(self.words, options, ctx.obj)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, a group after the other."""
        rows = {
            parameter.name: parameter.get_help_record(ctx)
            for parameter in self.get_params(ctx)
            if isinstance(parameter, click.Option)
        }
        hidden = set() if ctx.meta.get(_SHOWS_ALL) else self.rare
        for title, fields in self.panels.items():
            panel = {field.name: rows.pop(field.name, None) for field in fields}
            for field in fields:
                if field.option.is_argument:
                    panel[field.name] = (field.option.metavar or "", field.help)
            shown = (row for name, row in panel.items() if name not in hidden)
            _write_rows(formatter, title, shown)
        _write_rows(formatter, "Help" if self.panels else "Options", rows.values())

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002  (click's)
        """Write the example."""
        _write_example(self.spec.example, formatter)


class CommandGroup(click.Group):
    """Commands that are made when they are invoked, or when their help is shown.

    ``within``: the command that they belong to; empty for the program's own.
    """

    def __init__(self, within: str = "", **attributes: Any) -> None:
        self.within = within
        parts = [name.rpartition(" ") for name in COMMANDS]
        self.specs = {
            name: COMMANDS[f"{of} {name}".strip()] for of, _, name in parts if of == within
        }
        super().__init__(within or "slicebeam", context_settings=SETTINGS, **attributes)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments; a group without a command shows its help."""
        return super().parse_args(ctx, args or ["--help"])

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  (click's)
        """Return the names of the commands."""
        return list(self.specs)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  (click's)
        """Return a command; None if there is none."""
        if cmd_name not in self.specs:
            return None
        name = f"{self.within} {cmd_name}".strip()
        return (
            CommandGroup(name, help=COMMANDS[name].help) if name in GROUPS else PanelCommand(name)
        )

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the first argument names, and the others."""
        name = args[0]
        if not ctx.resilient_parsing and name not in self.specs:
            near = nearest(name, self.specs)
            meant = f"; did you mean {near}?" if near else f"; see {ctx.command_path} --help"
            raise click.UsageError(f"No such command: {name}{meant}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002  (click's)
        """Write the commands, a group after the other."""
        width = max(map(len, self.specs))
        for group in dict.fromkeys(spec.group for spec in self.specs.values()):
            rows = (
                (f"{name:<{width}}", spec.summary)
                for name, spec in self.specs.items()
                if spec.group == group
            )
            _write_rows(formatter, group, rows)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002  (click's)
        """Write the example."""
        program_example = "slicebeam demo\nslicebeam search --help"
        _write_example(COMMANDS[self.within].example if self.within else program_example, formatter)


def program() -> CommandGroup:
    """Return the command ``slicebeam``."""
    about = (
        "Find the slices of evaluation data where a model is worse, or where an update changed it."
    )
    version = click.version_option(
        package_name="slicebeam", message="%(prog)s %(version)s", help="Print the version and exit."
    )
    return version(CommandGroup(help=about))


def _print_all(ctx: click.Context, parameter: click.Parameter, is_given: bool) -> None:  # noqa: ARG001  (click's)
    if is_given and not ctx.resilient_parsing:
        ctx.meta[_SHOWS_ALL] = True
        click.echo(ctx.get_help())
        ctx.exit()


def _parameter(field: OptionField) -> click.Parameter:
    """Return the flag of an option; what its value has to be is checked with the other options."""
    kind: Any = field.kind if field.kind in (int, float, bool) else str
    option = field.option
    if option.is_argument:
        metavar = option.metavar if field.is_required else f"[{option.metavar}]"
        return click.Argument(
            [field.name],
            type=kind,
            required=field.is_required,
            nargs=-1 if field.is_list else 1,
            metavar=f"{metavar}..." if field.is_list else metavar,
            shell_complete=_completions(field),
        )
    words = f"  [default: {field.default_words}]" if field.default_words else ""
    if field.is_required:
        words = "  [required]"
    default = None if field.is_list or field.default == "" else field.default
    is_flag = field.kind is bool
    return click.Option(
        [*field.flags, field.name],
        type=None if is_flag else kind,
        is_flag=is_flag,
        multiple=field.is_list,
        metavar=None if is_flag else option.metavar or f"<{kind.__name__}>",
        default=default,
        show_default=default is not None,
        help=field.help + words,
        shell_complete=_completions(field),
    )


def _completions(field: OptionField) -> Any:
    """Return what a shell completes the value of an option by."""
    from slicebeam.pipelines.config.option_fields import FILE, FOLDER, PATH

    # The shell itself lists files and folders.
    kinds = {FILE: "file", PATH: "file", FOLDER: "dir"}

    def complete(_context: Any, _parameter: Any, start: str) -> list[CompletionItem]:
        if field.option.metavar in kinds:
            return [CompletionItem(start, type=kinds[field.option.metavar])]
        return [CompletionItem(word) for word in field.choices if word.startswith(start)]

    return complete


def _write_rows(
    formatter: click.HelpFormatter, title: str, rows: Iterable[tuple[str, str] | None]
) -> None:
    if shown := [row for row in rows if row is not None]:
        with formatter.section(title):
            formatter.write_dl(shown)


def _write_example(example: str, formatter: click.HelpFormatter) -> None:
    indent = " " * formatter.current_indent
    with formatter.section("Example"):
        for line in example.splitlines():
            formatter.write(" \\\n".join(_wrapped(line, f"{indent}  ")) + "\n")


def _wrapped(command: str, indent: str) -> Iterator[str]:
    """Break a command line before flags, which stay with their values."""
    words, *flags = command.split(" --")
    line = indent + words
    for flag in flags:
        if len(line) + len(flag) > _EXAMPLE_WIDTH:
            yield line
            line = f"{indent} "
        line += f" --{flag}"
    yield line

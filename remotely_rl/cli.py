"""The command `remotely-rl`.

    remotely-rl train impala --env ALE/Pong-v5 --actors 2 --minutes 15

Every field of an algorithm's Config is an option, with the field's prose as its help.
"""

import dataclasses
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import click

from remotely_rl import run_folder, sampler
from remotely_rl.algorithms import impala
from remotely_rl.errors import TrainingError, nearest


class _Refused(click.ClickException):
    exit_code = 2


class _Algorithms(click.Group):
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and self.get_command(ctx, args[0]) is None:
            known = ", ".join(self.list_commands(ctx))
            hint = nearest(args[0], self.commands) or f"; there is {known}"
            raise _Refused(f"no algorithm is called {args[0]!r}{hint}")
        return super().resolve_command(ctx, args)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="remotely", prog_name="remotely-rl")
def main() -> None:
    """Reinforcement learning on a cluster of remote objects."""


@main.group(cls=_Algorithms)
def train() -> None:
    """Train an agent; the algorithm's own options are in `remotely-rl train ALGORITHM --help`."""


def config_options(config: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """One option a field of a Config class, in their order; a field left out is not passed."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints = typing.get_type_hints(config, include_extras=True)
        for field in reversed(dataclasses.fields(config)):
            prose, kind = _prose_and_kind(hints[field.name])
            default = "none" if field.default is None else field.default
            name = field.name.replace("_", "-")
            command = click.option(
                f"--{name}/--no-{name}" if kind is bool else f"--{name}",
                field.name,
                type=kind,
                default=None,
                metavar=None if kind is bool else kind.__name__.upper(),
                help=f"{prose[0].upper()}{prose[1:]}.  [{default}]",
            )(command)
        return command

    return decorate


@train.command("impala", short_help=(impala.__doc__ or "").split("\n")[0])
@config_options(impala.Config)
@click.option(
    "--run", metavar="DIR", help="Folder of the run, which must not exist.  [under runs/]"
)
@click.option("--resume", metavar="RUN", help="Go on with this run; options given here win.")
@click.option("--address", metavar="HOST:PORT", help="Cluster to use.  [one of this machine]")
def train_impala(run: str | None, resume: str | None, address: str | None, **given: Any) -> None:
    """Actors run free, a learner corrects by V-trace for their being behind.

    Stops at --steps, --minutes or --target, all counted from the beginning of the run, or
    at Ctrl-C.  Defaults are in brackets; they are those that learn Pong on two cores.
    """
    given = {name: value for name, value in given.items() if value is not None}
    try:
        if resume is not None:
            given = run_folder.reopen(Path(resume), "impala")[1] | given
        config = _config(impala.Config, given)
        sampler.connect(config.actors, address)
        impala.train(config, run=run, resume=resume)
    except TrainingError as error:
        raise _Refused(str(error)) from None


def _config(kind: type[impala.Config], given: dict[str, Any]) -> impala.Config:
    known = [field.name for field in dataclasses.fields(kind)]
    for name in given:
        if name not in known:
            raise TrainingError(f"{kind.__module__} knows no option {name!r}{nearest(name, known)}")
    return kind(**given)


def _prose_and_kind(hint: Any) -> tuple[str, type]:
    """Takes `Annotated[float | None, "prose"]` apart; a Source is given as its id."""
    kind, prose = typing.get_args(hint) if typing.get_origin(hint) is Annotated else (hint, "")
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        kind = typing.get_args(kind)[0]
    return prose, kind


if __name__ == "__main__":
    main()

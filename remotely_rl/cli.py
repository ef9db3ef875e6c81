"""The command `remotely-rl`.

    remotely-rl train impala --env ALE/Pong-v5 --actors 2 --minutes 15

Every field of an algorithm's Config is an option, with the field's prose as its help.
"""

import dataclasses
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any

import click

import remotely
from remotely_rl import training
from remotely_rl.algorithms import impala
from remotely_rl.errors import TrainingError, nearest

Command = Callable[..., None]


class Refused(click.ClickException):
    """A mistake that a sentence tells."""

    exit_code = 2


class Algorithms(click.Group):
    """A group that answers an unknown name with the nearest one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            known = ", ".join(self.commands)
            hint = nearest(args[0], self.commands) or f"; there is {known}"
            raise Refused(f"no algorithm is called {args[0]!r}{hint}")
        return super().resolve_command(ctx, args)


def config_options(config: type) -> Callable[[Command], Command]:
    """One option a field of a Config class, in their order; what is not given is not passed."""

    def decorate(command: Command) -> Command:
        hints = typing.get_type_hints(config, include_extras=True)
        for field in reversed(dataclasses.fields(config)):
            kind, prose = _kind_and_prose(hints[field.name])
            name = field.name.replace("_", "-")
            default = "none" if field.default is None else field.default
            command = click.option(
                f"--{name}/--no-{name}" if kind is bool else f"--{name}",
                field.name,
                type=kind,
                default=None,
                help=f"{prose[0].upper()}{prose[1:]}.  [{default}]",
            )(command)
        return command

    return decorate


def _kind_and_prose(hint: Any) -> tuple[type, str]:
    """Takes `Annotated[float | None, "prose"]` apart: of a union, the first counts."""
    kind, prose = typing.get_args(hint) if typing.get_origin(hint) is Annotated else (hint, "?")
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        kind = typing.get_args(kind)[0]
    return kind, prose


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="remotely", prog_name="remotely-rl")
def main() -> None:
    """Reinforcement learning on a cluster of remote objects."""


@main.group(cls=Algorithms)
def train() -> None:
    """Train an agent.  `remotely-rl train ALGORITHM --help` shows all that can be set."""


@train.command("impala", short_help="Actors that run free, a learner that corrects for it.")
@config_options(impala.Config)
@click.option("--run", metavar="DIR", help="Folder of the run, which must not exist.  [in runs/]")
@click.option("--resume", metavar="RUN", help="Go on with this run; options given here win.")
@click.option("--address", metavar="HOST:PORT", help="Cluster to use.  [one of this process]")
def train_impala(run: str | None, resume: str | None, address: str | None, **given: Any) -> None:
    """Actors that run free, and a learner that corrects by V-trace for their being behind.

    Stops at --steps, --minutes or --target, all counted from the beginning of the run, or
    at Ctrl-C.  Defaults are in brackets; they are those that learn Pong on two cores.
    """
    given = {name: value for name, value in given.items() if value is not None}
    try:
        if resume is None:
            config = impala.Config(**given)
        else:
            config = training.config_of(impala.Config, "impala", resume, given)
        if address is not None:
            remotely.connect(address)
        impala.train(config, run=run, resume=resume)
    except (TrainingError, remotely.MasterLost, remotely.NotAllowed,
            remotely.VersionMismatch, remotely.NoResources) as error:  # fmt: skip
        raise Refused(str(error)) from None


if __name__ == "__main__":
    main()

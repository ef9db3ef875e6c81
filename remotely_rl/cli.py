"""The command `remotely-rl`.

    remotely-rl train ppo --env ALE/Pong-v5 --actors 2 --minutes 15
    remotely-rl evaluate RUN --episodes 30
    remotely-rl play RUN --video out.mp4
    remotely-rl plot RUN... --out curve.png
    remotely-rl runs
    remotely-rl note RUN "too greedy" --tag paper
    remotely-rl dashboard
    remotely-rl report RUN... --out report.html
    remotely-rl simulate fasgd:rate=0.001 sasgd:rate=0.04 --clients 128

Every field of an algorithm's Config is an option of `train`, with the field's prose as its
help, in the order of `config.GROUPS`.
"""

import contextlib
import importlib
import itertools
import json
import os
import sys
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

import remotely
from remotely.cli.options import refuse_empty_texts
from remotely.dashboard.options import check_is_installed, listening_options
from remotely.reporting.terminal import shown
from remotely_rl import algorithms, other_names, settings
from remotely_rl.errors import TrainingError, check_is_of_extra
from remotely_rl.runs.phases import Phases
from remotely_rl.user_code import is_in_file, named_in

if typing.TYPE_CHECKING:  # these import torch, which takes two seconds; --help does without
    from remotely_rl import networks
    from remotely_rl.config import Common
    from remotely_rl.environments import Source
    from remotely_rl.runs import training
    from remotely_rl.sync.simulation.simulator import Row as SimulatedRow

Command = Callable[..., None]

# Errors whose message suffices: printed without a traceback.
EXPLAINED = (
    TrainingError,
    remotely.MasterLost,
    remotely.NotAllowed,
    remotely.VersionMismatch,
    remotely.NoResources,
)


class UserError(click.ClickException):
    """An error of the user, explained in one sentence."""

    exit_code = 2


class TrainCommand(click.Group):
    """One command for each algorithm and each FILE.py:NAME.

    Commands are made on demand, because an algorithm imports torch.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise UserError(
                f"options come after the algorithm: remotely-rl train ppo {error.option_name} ..."
            ) from None

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(algorithms.ALGORITHMS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        try:
            command = _train_command(cmd_name)
        except TrainingError as error:
            raise UserError(str(error)) from None
        refuse_empty_texts(command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Algorithms"):
            rows = [(name, a.summary) for name, a in algorithms.ALGORITHMS.items()]
            formatter.write_dl([*rows, ("FILE.py:NAME", "Your own algorithm.")])


def _train_command(name: str) -> click.Command:
    train_by = algorithms.train_of(name)
    described = algorithms.ALGORITHMS.get(name)

    @click.command(
        name,
        cls=Configured,
        config=lambda: train_by.Config,
        defaults=DEFAULTS,
        groups=lambda: {
            group: (*fields, *TRAIN_OPTIONS.get(group, ()))
            for group, fields in importlib.import_module("remotely_rl.config").GROUPS.items()
        },
        hidden_fields=() if described else ("preset",),
        help=f"{described.description}\n\n{LIMITS}  {PRESETS}"
        if described
        else f"{train_by.summary}\n\n{LIMITS}",
    )
    @click.option("--model", metavar="FILE.py:NAME", help=MODEL.get(name, MODEL["all"]))
    @click.option("--run", metavar="DIR", help="A new folder for the run.  [in runs/]")
    @click.option("--resume", metavar="RUN", help="Resume this run, with the options given here.")
    @click.option("--initial", metavar="RUN", help="Start with the model of this run.")
    @click.option(
        "--hook", metavar="FILE.py:NAME", multiple=True, help="Your own Hook; may be repeated."
    )
    @click.option(
        "--seeds", metavar="1-5", help="One run per seed, in --run DIR; then mean and interval."
    )
    @click.option(
        "--at-once",
        metavar="N",
        type=click.IntRange(1),
        help="How many runs of --seeds train at a time.  [as many as fit]",
    )
    @click.option(
        "--address",
        metavar="ADDRESS",
        help="Cluster: HOST:PORT, or ray:local.  [REMOTELY_ADDRESS, or its own]",
    )
    def train_one(
        model: str | None,
        run: str | None,
        resume: str | None,
        initial: str | None,
        hook: Sequence[str],
        seeds: str | None,
        at_once: int | None,
        address: str | None,
        **given: Any,
    ) -> None:
        from remotely_rl import cluster  # noqa: PLC0415 - imports torch; --help does without
        from remotely_rl.runs import hooks, training  # noqa: PLC0415 - as above

        if (loading := click.get_current_context().find_object(Phases)) is not None:
            loading.end()
        with messages_for_errors():
            given = given_fields(given)
            if "env" in given:
                given["env"] = env_of(given["env"])
            if "evaluate_env" in given:
                given["evaluate_env"] = env_of(given["evaluate_env"], "--evaluate-env")
            several = _seeds_of(seeds, at_once, resume, given)
            if resume is None:
                config = train_by.Config(**DEFAULTS | given)
            else:
                config = training.config_of(train_by.Config, train_by.algorithm, resume, given)
            if several:
                _train_seeds(train_by, config, several, at_once, run, address)
                return
            if address is not None:
                cluster.connect(config.processes, address)
            instances = [hooks.make(named_in("--hook", name), name) for name in hook]
            result = train_by(
                config, model_of(model), run=run, resume=resume, initial=initial, hooks=instances
            )
        if result.new_steps == 0:
            again = "next" if resume else "first"
            why = f"the run ended before its {again} step: {result.ended}"
            if not result.is_interrupted:  # by whoever watched it
                why += ". If its actors waited for room, take fewer --actors or give it more time"
            raise click.ClickException(why)

    return train_one


def _seeds_of(
    text: str | None, at_once: int | None, resume: str | None, given: Mapping[str, Any]
) -> list[int]:
    """Return the seeds of --seeds; none without it."""
    if text is None:
        if at_once is not None:
            raise TrainingError("--at-once limits the runs of --seeds: give --seeds too")
        return []
    if resume is not None:
        raise TrainingError("--seeds resumes the runs in its --run DIR: leave out --resume")
    if "seed" in given:
        raise TrainingError("--seeds gives each run its seed: leave out --seed")
    from remotely_rl.runs import seeds  # noqa: PLC0415 - as in train_one

    return seeds.numbers(text)


def _train_seeds(
    train_by: "training.Train[Any]",
    config: "Common",
    seeds: Sequence[int],
    at_once: int | None,
    run: str | None,
    address: str | None,
) -> None:
    from remotely_rl.runs.seeds import train as train_each  # noqa: PLC0415 - as in train_one

    arguments = _arguments("seeds", "at_once", "run")
    if isinstance(config.actors, settings.Auto):  # the runs share the cores
        arguments.append(f"--actors={int(config.actors)}")
    outcomes = train_each(
        train_by,
        config,
        seeds,
        arguments,
        folder=None if run is None else Path(run),
        requested=at_once,
        address=address,
        say=click.echo,
    )
    if any(outcome.has_failed for outcome in outcomes):
        raise click.exceptions.Exit(1)


def _arguments(*without: str) -> list[str]:
    """Return the arguments of the current command, without these options."""
    ctx = click.get_current_context()
    words = ["train", ctx.info_name or ""]
    for param in ctx.command.get_params(ctx):
        value = ctx.params.get(param.name or "")
        if value is None or param.name in without or (isinstance(value, tuple) and not value):
            continue
        if isinstance(value, bool):
            words.append((param.opts if value else param.secondary_opts)[0])
        else:
            values = value if isinstance(value, tuple) else (value,)
            words += [f"{param.opts[0]}={each}" for each in values]
    return words


AS_POLICY = "Your own model as the policy; its value is not used.  [one that fits]"
MODEL = {
    "all": "Your own model.  [one that fits]",
    "sac": AS_POLICY,
    "td3": AS_POLICY,
    "crossq": AS_POLICY,
}
LIMITS = (
    "Stops at --total-steps, --minutes or --target, all counted from the start of the run, or at"
    " Ctrl-C.  An INTEGER may be written as 1e6 too.  Defaults are in brackets."
)
PRESETS = (  # not for an algorithm of the user
    "For many environments a preset has better ones, which `remotely-rl presets` lists."
)
# Defaults of a new run that differ from those of the Config.
DEFAULTS = {"preset": "auto"}
# The help sections of the options that are not fields.
TRAIN_OPTIONS = {
    "Network": ("model",),
    "Run": ("run", "resume", "initial", "hook", "seeds", "at_once"),
    "Machine": ("address",),
}


@contextlib.contextmanager
def messages_for_errors() -> Iterator[None]:
    """Print the EXPLAINED errors without a traceback."""
    try:
        yield
    except EXPLAINED as error:
        raise UserError(str(error)) from None


class Configured(click.Command):
    """A command with an option for each field of a Config class, besides its own options.

    `groups` maps each section of the help to the names of its options, in order; other fields
    go into the section Learning.  `config` and `groups` are called only when the options are
    needed, because they import torch.  `defaults` override those of the class; `hidden_fields`
    are left out of the help.
    """

    def __init__(
        self,
        *args: Any,
        config: Callable[[], type],
        defaults: Mapping[str, Any] | None = None,
        groups: Callable[[], Mapping[str, Sequence[str]]] = dict,
        hidden_fields: Sequence[str] = (),
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        self._config = config
        self._defaults = defaults or {}
        self._groups = groups
        self._hidden_fields = hidden_fields
        self._fields: list[click.Option] | None = None

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        if self._fields is None:
            self._fields = options_of(self._config(), self._defaults)
            for option in self._fields:
                option.hidden = option.name in self._hidden_fields
        *own, help_option = super().get_params(ctx)
        return [*self._fields, *own, help_option]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            given = error.option_name.lstrip("-").replace("-", "_")
            if why := settings.lacks(self._config()).get(given):
                raise UserError(why) from None
            known = [option.name or "" for option in self._fields or ()]
            if not (names := other_names.here(given, known)):
                raise
            options = " or ".join(
                REPEATED[name][0] if name in REPEATED else settings.option(name) for name in names
            )
            message = f"No such option '{error.option_name}': here that is {options}"
            raise click.NoSuchOption(error.option_name, message, ctx=ctx) from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups = self._groups()
        if not groups:
            super().format_options(ctx, formatter)
            return
        *options, help_option = self.get_params(ctx)
        records = {option.name: option.get_help_record(ctx) for option in options}
        grouped = {name for names in groups.values() for name in names}
        ungrouped = [name for name in records if name not in grouped]
        for group, members in groups.items():
            names = [*(ungrouped if group == "Learning" else ()), *members]
            if found := [record for name in names if (record := records.get(name))]:
                with formatter.section(group):
                    formatter.write_dl(found)
        if record := help_option.get_help_record(ctx):
            with formatter.section("Help"):
                formatter.write_dl([record])


class WholeNumber(click.types.IntParamType):
    """A whole number, which may be written as 1e6; or "auto", where the default is that."""

    def __init__(self, has_auto: bool = False) -> None:
        self._has_auto = has_auto

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if self._has_auto and value == settings.AUTO:
            return value
        try:
            return settings.whole(value)
        except ValueError:
            self.fail(f"{value!r} is not a whole number, such as 1000 or 1e6", param, ctx)


def options_of(config: type, defaults: Mapping[str, Any]) -> list[click.Option]:
    """Return an option for each field of a Config class; its value is None unless given.

    The help shows `defaults` in place of the class's.
    """
    options = []
    for field in settings.settings(config):
        if field.name in REPEATED:
            options.append(_repeated(field.name, field.prose))
            continue
        kind, prose, bounds = field.first_kind, field.prose, field.bounds
        name = field.name.replace("_", "-")
        default = defaults.get(field.name, field.default)
        default = "none" if default is None else default
        allowed = f", {bounds}" if bounds and bounds.high < float("inf") else ""
        options.append(
            click.Option(
                [f"--{name}/--no-{name}" if kind is bool else f"--{name}", field.name],
                type=WholeNumber(isinstance(field.default, settings.Auto)) if kind is int else kind,
                default=None,
                help=f"{prose[0].upper()}{prose[1:]}{allowed}.  [{default}]",
            )
        )
    return options


# Fields with several values, one for each use of the option: the option, and its metavar.
REPEATED = {
    "env_kwargs": ("--env-arg", "NAME=VALUE"),
    "wrappers": ("--wrapper", "MODULE:NAME"),
    "env_packages": ("--env-package", "PACKAGE"),
    "evaluate_env_kwargs": ("--evaluate-env-arg", "NAME=VALUE"),
}


def _repeated(name: str, prose: str) -> click.Option:
    """Return an option of REPEATED; its value is a tuple of strings."""
    option, metavar = REPEATED[name]
    text = f"{prose[0].upper()}{prose[1:]}.  [none]"
    return click.Option([option, name], multiple=True, metavar=metavar, help=text)


def given_fields(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields given on the command line, with --env-arg parsed to a dict.

    Raises TrainingError for an --env-arg that is not NAME=VALUE.
    """
    given = {k: v for k, v in params.items() if v is not None and (k not in REPEATED or v)}
    for field in ("env_kwargs", "evaluate_env_kwargs"):
        if field in given:
            given[field] = _named_values(REPEATED[field][0], given[field])
    return given


def _named_values(option: str, words: Sequence[str]) -> dict[str, Any]:
    arguments = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name.isidentifier():
            raise TrainingError(f"{option} needs NAME=VALUE, not {word!r}")
        arguments[name] = settings.literal(text)
    return arguments


def model_of(word: str | None) -> "networks.ModelSource | None":
    """Load `FILE.py:NAME`, a class, a function or a module; None for None."""
    return typing.cast("networks.ModelSource | None", named_in("--model", word))


def env_of(word: str | None, option: str = "--env") -> "Source | None":
    """Load `FILE.py:NAME`, a class or function that makes environments; any other word is an id."""
    if word is not None and is_in_file(word):
        return typing.cast("Source | None", named_in(option, word))
    return word


def _values_of(option: str) -> list[str]:
    """Return what this process's command line gives an option, before it is parsed."""
    words = sys.argv[1:]
    joined = [word.partition("=")[2] for word in words if word.startswith(f"{option}=")]
    return joined + [after for word, after in itertools.pairwise(words) if word == option]


class CommandLine(click.Group):
    """The command line.  For `train` it starts the cluster while torch is imported: each takes
    seconds."""

    def main(self, args: Sequence[str] | None = None, *more: Any, **options: Any) -> Any:
        words = [word.partition("=")[0] for word in sys.argv[1:]] if args is None else []
        known = [word for word in words[1:2] if word in algorithms.ALGORITHMS or is_in_file(word)]
        loading = Phases(click.echo)
        needs_no_cluster = {"-h", "--help", "--address", "--seeds"} & set(words)
        if words[:1] == ["train"] and known and not needs_no_cluster:
            from remotely_rl import cluster  # noqa: PLC0415 - `--help` does without

            if (pythons := _values_of("--env-python")) and all(pythons):
                try:  # before all that takes seconds
                    with messages_for_errors():
                        cluster.check_interpreter(pythons[-1], _values_of("--env-package"))
                except UserError as error:
                    error.show()
                    sys.exit(error.exit_code)
            cluster.begin()
            loading.enter("PyTorch and the algorithm are loaded")
        try:
            return super().main(args, *more, obj=loading, **options)
        except ModuleNotFoundError as error:
            try:
                check_is_of_extra(error)
            except TrainingError as missing:
                sys.exit(f"Error: {missing}")
            raise
        finally:
            loading.end()


@click.group(
    cls=CommandLine,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(remotely.__version__, message="remotely-rl %(version)s")
def main() -> None:
    """Reinforcement learning on a cluster of remote objects."""
    sys.path.append("")  # the working directory, for `module:id`; last, to shadow nothing


@main.group(cls=TrainCommand)
def train() -> None:
    """Train an agent.  `remotely-rl train ALGORITHM --help` shows all options."""


def run_options(command: Command) -> Command:
    """Add the argument and the options of a command that loads an agent from a run folder."""
    for decorate in reversed(
        (
            click.argument("run"),
            click.option(
                "--checkpoint",
                type=click.Choice(["best", "last"]),
                default="last",
                show_default=True,
                help="Which checkpoint of the run.",
            ),
            click.option(
                "--seed", default=1000, show_default=True, help="Seed of all random numbers."
            ),
            click.option(
                "--model",
                metavar="FILE.py:NAME",
                help="Your own model, if the run was trained with one.",
            ),
            click.option(
                "--env",
                metavar="ENV",
                help="Another environment with the same spaces, or"
                " your own environment of the run: FILE.py:NAME.",
            ),
            click.option(
                "--algorithm",
                metavar="FILE.py:NAME",
                help="Your own algorithm of the run, if its file has moved.",
            ),
            click.option(
                "--steps",
                metavar="N",
                type=WholeNumber(),
                help="Stop after N steps in each"
                " environment; only finished episodes count.  [no limit]",
            ),
        )
    ):
        command = decorate(command)
    command.__click_params__[:0] = [  # type: ignore[attr-defined]
        _repeated("env_kwargs", "argument of the environment, besides those of the run"),
        _repeated("wrappers", "wrapper of the environment, instead of those of the run"),
    ]
    return command


@main.command()
@run_options
@click.option("--episodes", default=30, show_default=True, help="Whole games to play in each mode.")
@click.option(
    "--greedy/--sampled",
    default=None,
    help="Take the most likely action, or sample from the policy as in training.  [both in turn]",
)
@click.option("--envs", default=16, show_default=True, help="Games to play in parallel.")
@click.option("--json", "as_json", is_flag=True, help="Print all numbers, for programs.")
def evaluate(
    run: str,
    checkpoint: str,
    seed: int,
    model: str | None,
    env: str | None,
    algorithm: str | None,
    steps: int | None,
    episodes: int,
    greedy: bool | None,
    envs: int,
    as_json: bool,
    **more: Any,
) -> None:
    """Play whole games with the agent of a RUN folder; print their mean raw score.

    Also prints the 95 % confidence interval of the mean (Student's t).  The same options give
    the same games.
    """
    from remotely_rl.agents import evaluation, load  # noqa: PLC0415 - as in train_one

    with messages_for_errors():
        agent = load.load(
            run,
            checkpoint,
            model_of(model),
            env_of(env),
            named_in("--algorithm", algorithm),
            **given_fields(more),
        )
        results = []
        for mode in (False, True) if greedy is None else (greedy,):
            results.append(evaluation.measure(agent, episodes, mode, seed, envs, steps))
            if not as_json:
                click.echo(results[-1])
        if as_json:
            click.echo(evaluation.as_json(results))


@main.command()
@run_options
@click.option("--video", metavar="FILE.mp4", help="Record a video.  [only print scores]")
@click.option("--episodes", default=1, show_default=True, help="Whole games to play.")
@click.option("--greedy/--sampled", default=False, help="As in `evaluate`.  [sampled]")
def play(
    run: str,
    checkpoint: str,
    seed: int,
    model: str | None,
    env: str | None,
    algorithm: str | None,
    steps: int | None,
    video: str | None,
    episodes: int,
    greedy: bool,
    **more: Any,
) -> None:
    """Watch the agent of a RUN folder play."""
    from remotely_rl.acting import evaluation  # noqa: PLC0415 - as in train_one
    from remotely_rl.agents import video as videos  # noqa: PLC0415 - as in train_one

    with messages_for_errors():
        played = videos.play(
            run,
            video,
            episodes,
            greedy,
            checkpoint,
            seed=seed,
            model=model_of(model),
            env=env_of(env),
            algorithm=named_in("--algorithm", algorithm),
            steps=steps,
            **given_fields(more),
        )
    for number, episode in enumerate(played.episodes, 1):
        score = evaluation.plain(episode.score)
        click.echo(f"episode {number}: {score} in {episode.length:,} steps")
    if len(played.episodes) < episodes:
        click.echo(f"stopped during an episode, after {played.steps:,} steps in total")
    if video is not None:
        seconds = played.pictures / played.fps
        click.echo(f"{video}: {played.pictures:,} frames, {seconds:,.0f} s")


@main.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option(
    "--out",
    metavar="FILE.png",
    help="Where to draw it.  [curve.png beside the runs, or in a single RUN]",
)
@click.option("--x", "over", type=click.Choice(["minutes", "steps"]), help="One panel.  [both]")
@click.option(
    "--iqm", is_flag=True, help="Interquartile means with 95 % intervals, also printed as figures."
)
def plot(runs: tuple[str, ...], out: str | None, over: str | None, iqm: bool) -> None:
    """Draw the learning curves of one or more RUN folders.

    Runs that differ only in the seed become one line: their mean, with a band from the lowest to
    the highest, up to the end of the shortest.  Each run is also a thin line to its own end.  A
    run that ended at its target continues with its last value.  A folder of --seeds stands for
    all runs in it.

    With --iqm the line is the interquartile mean, with a bootstrap interval if there are five
    runs or more; of several environments there is a figure over all, of scaled returns.
    """
    from remotely_rl.runs import curve  # noqa: PLC0415 - as in train_one

    if out is None:  # for a single run this is its own curve.png, drawn from the same rows
        beside = Path(os.path.commonpath([Path(run).resolve() for run in runs]))
        out = str(
            (beside if len(beside.parts) > 1 and os.access(beside, os.W_OK) else Path())
            / "curve.png"
        )
    with messages_for_errors():
        empty = curve.compare(runs, out, over, iqm=iqm)
        for figure in curve.figures(runs) if iqm else ():
            click.echo(figure)
    for run in empty:
        click.echo(f"left out, because it has no finished episode: {run}", err=True)
    click.echo(out)


@main.command()
@click.argument("folder", default="runs", metavar="[RUNS]")
@click.option("--json", "as_json", is_flag=True, help="Print all that is known, for programs.")
def runs(folder: str, as_json: bool) -> None:
    """List the runs of the RUNS folder, the newest last: which train, and how the others ended.

    Of a run that has ended it prints why, and the command that goes on with it, or that starts it
    anew if it has no checkpoint.
    """
    from remotely_rl.dashboard.runs import Runs  # noqa: PLC0415 - as in train_one
    from remotely_rl.runs import status  # noqa: PLC0415 - as in train_one

    if not Path(folder).is_dir():
        raise UserError(f"there is no folder {folder}; name the folder of your runs")
    found = sorted(Runs(Path(folder)).rows(), key=lambda row: row["updated"])
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    for row in found:
        steps = "no row yet" if row["steps"] is None else f"{row['steps']:,.0f} steps"
        score = "" if row["return_mean"] is None else f"  return {row['return_mean']:.4g}"
        click.echo(f"{row['state']:<8}{shown(row['name'])}  {steps}{score}")
        anew = (status.NO_CHECKPOINT, row["start_anew"]) if row["start_anew"] else ()
        for line in (row["why"], row["go_on"], *anew):
            if line:
                click.echo(f"        {shown(line)}")


@main.command()
@click.argument("run")
@click.argument("text", required=False, type=click.UNPROCESSED)  # an empty one removes the note
@click.option("--tag", "tags", metavar="WORD", multiple=True, help="Add a tag; may be repeated.")
@click.option("--untag", metavar="WORD", multiple=True, help="Remove a tag; may be repeated.")
def note(run: str, text: str | None, tags: Sequence[str], untag: Sequence[str]) -> None:
    """Write a note and tags on a RUN, which the dashboard shows and searches; print them."""
    from remotely_rl.runs import notes  # noqa: PLC0415 - as in train_one

    with messages_for_errors():
        if text is None and not tags and not untag:
            noted = notes.read(run)
        else:
            noted = notes.change(run, text, tags, untag)
    click.echo(shown(noted.text) if noted.text else "no note")
    click.echo(f"tags: {shown(' '.join(noted.tags)) or 'none'}")


@main.command()
@click.argument("runs", default="runs", metavar="[RUNS]")
@click.option(
    "--address",
    metavar="HOST:PORT|PID",
    help="Also show this cluster, or that of the script with this pid.",
)
@click.option(
    "--key",
    type=click.Path(path_type=Path),
    help="Its viewer.key; by default beside the key of REMOTELY_KEY, or in ~/.remotely/keys.",
)
@listening_options
def dashboard(runs: str, address: str | None, key: Path | None, **where: Any) -> None:
    """Show the RUNS folder in the browser: live curves, and comparisons of runs.

    It prints a link that works once, and is read-only.  With --address it also shows a cluster,
    as `remotely dashboard` does.
    """
    try:
        check_is_installed()
        from remotely_rl.dashboard import command  # noqa: PLC0415 - `--help` needs no server

        command.run(Path(runs), address, key, where)
    except (TrainingError, remotely.RemotelyError, ValueError) as error:
        raise UserError(str(error)) from None


@main.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option(
    "--out", metavar="FILE.html", default="report.html", show_default=True, help="What to write."
)
def report(runs: tuple[str, ...], out: str) -> None:
    """Write a report about one or more RUNs to share: curves, figures, settings.

    It is a single HTML file without scripts, which fetches nothing.  A folder of --seeds stands
    for all runs in it.  A file that is there already is replaced, which it says.
    """
    from remotely_rl.dashboard import report as reports  # noqa: PLC0415 - as in train_one

    existed = Path(out).exists()
    with messages_for_errors():
        reports.write([Path(run) for run in runs], Path(out))
    if existed:
        click.echo("replaced the report that was there; --out names another file", err=True)
    click.echo(out)


def _study() -> type:
    from remotely_rl.sync.simulation.study import Study  # noqa: PLC0415 - as in train_one

    return Study


@main.command(cls=Configured, config=_study)
@click.argument("rules", nargs=-1, required=True, metavar="RULE...")
@click.option("--data", metavar="DIR", help="MNIST's files.  [Debian's Fashion-MNIST]")
@click.option("--out", metavar="FILE.csv", help="Write all rows.")
@click.option("--png", metavar="FILE.png", help="Draw the test loss.")
def simulate(
    rules: tuple[str, ...], data: str | None, out: str | None, png: str | None, **given: Any
) -> None:
    """Train a small image classifier with sync RULEs, in one process.

    A RULE is NAME or NAME:SETTING=VALUE,..., such as fasgd:rate=0.001 or semi_async:n=32.  Each
    is a separate run, with the same initial weights and the same images in the same order.
    """
    from remotely_rl.sync.simulation import problems, study  # noqa: PLC0415 - as in train_one

    with messages_for_errors():
        config = study.Study(**{name: value for name, value in given.items() if value is not None})
        images = problems.load(data)
        results = {}
        for rule in rules:
            click.echo(rule)
            results[rule] = study.run(rule, config, images, lambda row: click.echo(line_of(row)))
        if out is not None:
            study.write(out, results)
        if png is not None:
            study.draw(png, results, f"{config.clients} clients, batches of {config.batch}")


def line_of(row: "SimulatedRow") -> str:
    """Return a row of a simulation as one line."""
    clock = f"{row.time_s:10,.2f} s" if row.time_s else ""
    return (
        f"{row.iteration:10,} pushes{clock}  loss {row.metrics['loss']:.4f}"
        f"  accuracy {row.metrics['accuracy']:.4f}  version {row.version:,}"
        f"  staleness {row.staleness:.1f}  {row.bytes / 1e6:,.0f} MB"
    )


@main.command()
def presets() -> None:
    """List the presets of `train`: settings for an environment, and the results they reached."""
    from remotely_rl.config import presets  # noqa: PLC0415 - as in train_one

    for row in presets.ROWS:
        click.echo(f"remotely-rl train {row.algorithm} --env {row.env}")
        click.echo(f"    {row}\n    {row.options}")


@main.command()
def rules() -> None:
    """List the sync RULEs and their settings."""
    from remotely_rl import sync  # noqa: PLC0415 - as in train_one

    for name in sync.RULES:
        click.echo(f"{name}\n    {sync.summary_of(name)}")
        for setting in sync.settings_of(name):
            click.echo(f"    {setting.name:<16} {setting.prose}  [{setting.default}]")
    click.echo("around any rule\n    Gates on pushes and fetches, and a rate.")
    click.echo(
        "    rate             plain gradient descent at this rate, instead of the optimizer"
        "  [none: train's --optimizer (optimizer=) and --learning-rate]"
    )
    for setting in settings.settings(sync.Gates):
        click.echo(f"    gate_{setting.name:<11} {setting.prose}  [{setting.default}]")


refuse_empty_texts(main)


if __name__ == "__main__":
    main()

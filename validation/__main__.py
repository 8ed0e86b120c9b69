"""Command line of the validation scripts: list them, run some or all of them, update or check checksums."""

import argparse
import subprocess
import sys
from pathlib import Path

from validation._tools import catalog, checksums, runner

DESCRIPTION = """Without names: lists all scripts by group, with the date, commit and checks of their stored results.

With names of scripts or groups, or "all": runs each script in a separate process and prints one table of the checks.
Exit status: 0 if all checks held, 1 if some failed, 2 for invalid arguments, 130 after Ctrl-C. After an interruption,
run the same command again: stored trials are not computed again. Arguments after -- are passed to the script; see
NAME --help.

With --sums: updates the file SHA256SUMS of the stored results, as every run does, or checks it and lists the
differences (exit status 1 if there are any)."""


def positive(word: str) -> int:
    """Convert a word to a positive number of processes, for argparse."""
    if not (word.isdecimal() and int(word) > 0):
        raise argparse.ArgumentTypeError(f"got {word}, need a positive whole number")
    return int(word)


def sums(folder: Path, what: str) -> int:
    """Write or check the checksums of a folder and return the exit status."""
    changed = checksums.write_sums(folder) if what == "write" else checksums.find_differences(folder)
    print("\n".join([*changed, f"{len(checksums.read_sums(folder))} files listed in {folder / checksums.NAME}"]))
    return int(what == "check" and bool(changed))


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    before, more = (words[: words.index("--")], words[words.index("--") + 1 :]) if "--" in words else (words, [])
    parser = argparse.ArgumentParser(
        "python -m validation", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False, allow_abbrev=False,
    )  # fmt: skip
    parser.add_argument("names", nargs="*", help=f"names of scripts, groups ({', '.join(catalog.GROUPS)}) or all")
    parser.add_argument("--help", action="store_true", help="show this text; after a name, the help of that script")
    parser.add_argument("--out", type=Path, default=catalog.ROOT / "results", help="folder of the stored results")
    parser.add_argument("--quick", action="store_true", help="run at reduced sizes, for CI")
    parser.add_argument("--draw", action="store_true", help="only draw pictures, from stored numbers")
    parser.add_argument("--workers", type=positive, metavar="N", help="number of processes of a script")
    parser.add_argument("--jobs", type=positive, default=1, metavar="N",
                        help="number of scripts at the same time, each with one thread and a log file")  # fmt: skip
    parser.add_argument(
        "--sums", nargs="?", const="write", choices=("write", "check"), help="write or check checksums of results"
    )
    args = parser.parse_intermixed_args(before)
    try:
        scripts = catalog.select_scripts(args.names)
    except ValueError as error:
        parser.error(str(error))
    if more and len(scripts) != 1:
        parser.error(f"--: needs the name of exactly one script before it, got {' '.join(more)}")
    if args.sums:
        return sums(args.out, args.sums)
    if args.help and len(scripts) == 1:
        return subprocess.call(runner.build_command(scripts[0], ["--help"]), env=runner.build_environment())
    if args.help:
        parser.print_help()
    elif scripts:
        try:
            catalog.open_results(args.out)
        except ValueError as error:
            parser.error(str(error))
        return runner.run_scripts(scripts, args, more)
    else:
        print(catalog.format_listing(args.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())

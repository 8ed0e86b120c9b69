"""Command line: gamp-attention COMMAND.

Exit status: 0 done, 1 not converged, 2 bad input, 130 interrupted, 141 output no longer read. The modules of
the commands are imported after the options have been read, because they load the solvers.
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper

from gamp_attention._tools.interrupts import interruptible
from gamp_attention.extensions.cli.options import build_parser, name_options, quote_options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # "?" for characters that the terminal lacks, such as Greek
    options = build_parser().parse_args(arguments)
    try:
        with interruptible():
            name = "fit" if options.command == "fit" else "paper_model"
            module = import_module(f"gamp_attention.extensions.cli.{name}")
            from gamp_attention._tools.progress import Progress
            from gamp_attention.extensions.cli.output import check_extras, check_outputs

            check_extras(options)
            check_outputs(options)
            with Progress(f"{options.command} "):  # solvers nest their progress bars in this bar
                status: int = getattr(module, f"run_{options.command}")(options)
        sys.stdout.flush()  # raises here, not when Python ends, if the output is no longer read
        return status
    except BrokenPipeError:  # the reader of the output, for instance `head`, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python writes the rest when it ends
        return 141
    except (ValueError, TypeError, ImportError, OSError, MemoryError) as error:
        print(f"gamp-attention {options.command}: {name_options(str(error), options.flags)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as error:
        message = str(error) or "interrupted, nothing was written: run the same command again for the same numbers"
        print(f"gamp-attention {options.command}: {quote_options(message, options.flags)}", file=sys.stderr)
        return 130

"""The command `python -m gamp_attention`, the same as `gamp-attention`."""

import sys

from gamp_attention.extensions.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

"""`python -m bot`: the command line."""

import sys

# An installer refuses an older Python by itself; a clone can be started with any.
if sys.version_info < (3, 11):  # noqa: UP036
    sys.exit(
        "error: Bracketbot needs Python 3.11 or newer; %s is %d.%d. Install one, or name it: make demo"  # noqa: UP031
        " PYTHON=/path/to/python3.12" % (sys.executable, *sys.version_info[:2])
    )

from bot.cli import main

if __name__ == "__main__":
    main()

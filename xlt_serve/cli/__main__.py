"""``python -m xlt_serve.cli``, for torchrun and for environments whose scripts are not on the path."""

import sys

from xlt_serve.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

"""`python -m openneutron` is the `openneutron` command."""

from __future__ import annotations

import sys

from openneutron.cli import main

if __name__ == "__main__":
    sys.exit(main())

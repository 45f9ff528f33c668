"""`python -m openneutron.compiler.microcode [--check]` writes the C header and the docs, or compares them."""

import sys

from openneutron.compiler.microcode.header import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

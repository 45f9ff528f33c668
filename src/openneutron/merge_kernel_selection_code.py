"""The name ExecuTorch's NXP manual types: `python -m openneutron.merge_kernel_selection_code`."""

import sys

from openneutron.converter.merge_kernels import main
from openneutron.package.pte import inspect_program

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], inspect_program))

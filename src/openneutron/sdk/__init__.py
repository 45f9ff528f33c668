"""What ExecuTorch's own NXP backend calls, answered by the open converter: `eiq_neutron_sdk` for one process.

    python -m openneutron.sdk -m executorch.examples.nxp.aot_neutron_compile --quantize --delegate -m cifar10

`open_sdk()` is the same as a context manager, `pytest -p openneutron.sdk.plugin` for tests. Nothing is
installed: the modules lie in a folder that goes with the process, and the microcode runs on OpenNeutron's
firmware and simulator, never on NXP silicon. docs/upstream.md has the page.
"""

from openneutron.sdk.session import open_sdk

__all__ = ["open_sdk"]

"""A pytest plugin: ExecuTorch's shared operator suite with OpenNeutron's flow, and no other.

The suite's list of flows is fixed; and ExecuTorch's NXP flow must not be imported in one process with ours:
both have a backend of one name.
"""

from executorch.backends.test.suite import flow

from tests.upstream.flow import OPENNEUTRON_INT8_FLOW

flow.all_flows = lambda: {OPENNEUTRON_INT8_FLOW.name: OPENNEUTRON_INT8_FLOW}

"""A stand-in for NXP's eiq_neutron_sdk: interface and behaviour as publicly known, crash included.

`install(folder, behaviour)` writes a package `eiq_neutron_sdk` into a folder for PYTHONPATH. It converts any
model to one NeutronGraph operator with a made-up microcode whose public words are right.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

MICROCODE_BYTES, WEIGHTS_BYTES, SCRATCH_BYTES, PREFETCH_BYTES = 96, 40, 4096, 512

_CONVERTER = """
import os, struct, sys, time
import numpy as np
import flatbuffers
from ai_edge_litert import schema_py_generated as schema

BEHAVIOUR = {behaviour!r}


class _Options:
    def __init__(self):
        self.minNumOpsPerGraph = 3
        self.excludeGraphPasses = ""
        self.fetchConstantsToSRAM = False
        self.dumpKernelSelectionCode = False
        self.useProfiling = False
        self.effort = 0


class CompilationContext:
    def __init__(self):
        self.targetOpts = None
        self.compilationOpts = _Options()


def getNeutronTarget(name):
    return ("target", name)


def convertModel(model, context):
    assert isinstance(model, list) and context.targetOpts[0] == "target"
    options = context.compilationOpts
    assert options.minNumOpsPerGraph == 1 and "MergeTranspose" in options.excludeGraphPasses
    if BEHAVIOUR == "abort":
        print("Assertion failed: tensor != nullptr", file=sys.stderr, flush=True)
        os.abort()
    if BEHAVIOUR == "exit":
        os._exit(3)
    if BEHAVIOUR == "hang":
        time.sleep(3600)
    if BEHAVIOUR == "refuse":
        raise RuntimeError("operator SOFTMAX with 5000 channels is not supported")
    if BEHAVIOUR == "empty":
        return []
    if BEHAVIOUR == "unchanged":
        return model
    if BEHAVIOUR == "garbage":
        return list(b"garbage!" * 8)
    if options.dumpKernelSelectionCode:
        with open("_kernel_selection.c", "w") as file:
            file.write("typedef enum NeutronKernelKind {{ A }} NeutronKernelKind;\\n"
                       "int32_t (*neutronKernels[1])(void) = {{0}};\\n")
    return list(_neutron_graph(bytes(model), options))


def _neutron_graph(raw, options):
    model = schema.ModelT.InitFromPackedBuf(bytearray(raw), 0)
    graph = model.subgraphs[0]
    words = [0] * ({microcode} // 4)
    words[0] = 0x64434D6E if BEHAVIOUR != "magic" else 0x12345678
    words[6], words[7], words[9] = {microcode}, {weights}, {scratch}
    n_in, n_out = len(graph.inputs), len(graph.outputs)
    prefetch = {prefetch} if options.fetchConstantsToSRAM else 0
    if options.useProfiling:
        words[10:15] = [0x80000000 | 256, 128, prefetch, n_in, n_out]
    else:
        words[10:13] = [prefetch, n_in, n_out]
    parts = [("microcode", struct.pack(f"<{{len(words)}}I", *words)), ("weights", bytes(range({weights}))),
             ("kernels", b"firmware")]
    tensors = [graph.tensors[i] for i in (*graph.inputs, *graph.outputs)]
    model.buffers = [schema.BufferT()]
    for tensor in tensors:
        tensor.buffer = 0
    names = []
    for name, data in parts:
        buffer = schema.BufferT()
        buffer.data = np.frombuffer(data, np.uint8)
        model.buffers.append(buffer)
        tensors.append(_tensor(name, len(data), len(model.buffers) - 1))
    extra = (("profile", 256), ("debug", 128)) if options.useProfiling else ()
    for name, size in (*extra, ("scratch", {scratch})):
        tensors.append(_tensor(name, size, 0))
    op = schema.OperatorT()
    op.opcodeIndex = 0
    ios = n_in + n_out
    op.inputs = np.array([*range(n_in), ios, ios + 1, ios + 2], np.int32)
    op.outputs = np.array([*range(n_in, ios), *range(ios + 3, len(tensors))], np.int32)
    code = schema.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = 32
    code.customCode = b"NeutronGraph"
    graph.tensors, graph.operators, model.operatorCodes = tensors, [op], [code]
    graph.inputs = np.arange(n_in, dtype=np.int32)
    graph.outputs = np.arange(n_in, ios, dtype=np.int32)
    model.signatureDefs = model.metadata = None
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())


def _tensor(name, size, buffer):
    tensor = schema.TensorT()
    tensor.name = name.encode()
    tensor.shape = np.array([size], np.int32)
    tensor.type = schema.TensorType.UINT8
    tensor.buffer = buffer
    return tensor
"""

_UTILS = """
def isNeutronTarget(name):
    return name in getNeutronTargets()


def getNeutronTargets():
    return {targets!r}
"""


def install(folder: Path, behaviour: str = "") -> Path:
    """Write the package; `behaviour` is what it does wrong."""
    package = folder / "eiq_neutron_sdk"
    package.mkdir()
    (package / "__init__.py").write_text('__version__ = "3.2.0"\n')
    converter = _CONVERTER.format(
        behaviour=behaviour,
        microcode=MICROCODE_BYTES,
        weights=WEIGHTS_BYTES,
        scratch=SCRATCH_BYTES,
        prefetch=PREFETCH_BYTES,
    )
    if behaviour == "old":
        converter = "def convert(model, target):\n    return model\n"
    if behaviour == "broken":
        converter = "raise ImportError('libNeutron.so: cannot open shared object file')\n"
    (package / "neutron_converter.py").write_text(textwrap.dedent(converter))
    targets = ["imx95"] if behaviour == "target" else ["imxrt700", "imx95"]
    (package / "neutron_library_utils.py").write_text(_UTILS.format(targets=targets))
    return folder

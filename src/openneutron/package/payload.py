"""The delegate payload: what a .pte carries for one partition, and the only definition of its bytes.

    header | microcode | weights | kernels          each part padded to 16 bytes

Header bytes: nInputs, nOutputs, nInputArgs, inputFormat[nInputs], outputFormat[nOutputs], inputMap[nInputs],
outputMap[nOutputs], payloadVersion. Format 1 means the caller's tensor is channels first and the runtime
transposes it to channels last; a map entry is the position of the graph input or output. NXP's stock runtime
reads this layout, so both converters use it; which of them made a payload is in the microcode's magic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from openneutron.compiler.microcode import format as own
from openneutron.converter.protocol import ConvertedModel
from openneutron.converter.stock import MAGIC as STOCK_MAGIC
from openneutron.converter.stock import PLAIN, PROFILING, StockWords, read_words, word_count
from openneutron.diagnostics import fail
from openneutron.targets.table import DEFAULT_TARGET

ALIGNMENT = 16
AS_IS, CHANNELS_LAST = 0, 1
INPUTS_AT, OUTPUTS_AT, INPUT_ARGS_AT, PORTS_AT = 0, 1, 2, 3  # of the header's bytes
_MOST = 255  # every count and index is one byte


@dataclass(frozen=True)
class Port:
    """One input or output of the microcode: the argument of the graph it is, and its format flag."""

    argument: int
    format: int = AS_IS


@dataclass(frozen=True)
class Stamp:
    """What made a payload and what it needs; compared before anything runs."""

    converter: str
    format_version: int | None  # of our microcode; NXP's is not public
    target: str | None
    runs_on: str


@dataclass(frozen=True)
class Payload:
    """A payload, taken apart."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    input_args: int  # arguments of the delegate call that are inputs
    microcode: bytes
    weights: bytes
    kernels: bytes
    version: int = PLAIN

    @property
    def words(self) -> StockWords:
        """The sizes the runtime needs."""
        return read_words(self.microcode, self.version)

    @property
    def places(self) -> tuple[int | None, ...]:
        """Where each input and then each output lies in scratch; None for one in a buffer of its own."""
        return tuple(d.place - 1 if d.place else None for d in self._descriptors())

    @property
    def beyond_io_bytes(self) -> int:
        """Scratch memory beyond the inputs and outputs that lie in it."""
        inside = sum(d.bytes for d in self._descriptors() if d.place)
        return max(0, self.words.scratch_bytes - inside)

    def _descriptors(self) -> list[own.Descriptor]:
        if not self.is_open:
            return []
        first, each = own.format_of(own.Header).size, own.format_of(own.Descriptor).size
        count = len(self.inputs) + len(self.outputs)
        if len(self.microcode) < first + count * each:
            return []  # damaged; the driver will say so
        return [own.unpack(own.Descriptor, self.microcode, first + i * each) for i in range(count)]

    @property
    def states(self) -> list[own.State]:
        """What the delegate remembers from run to run."""
        first, each = own.format_of(own.Header).size, own.format_of(own.Descriptor).size
        if not self.is_open or len(self.microcode) < first:
            return []
        at, size = first + (len(self.inputs) + len(self.outputs)) * each, own.format_of(own.State).size
        count = min(own.unpack(own.Header, self.microcode).states, (len(self.microcode) - at) // size)
        return [own.unpack(own.State, self.microcode, at + i * size) for i in range(count)]

    @property
    def state_bytes(self) -> int:
        """Memory that survives from run to run."""
        return max((-(-(s.offset + s.bytes) // ALIGNMENT) * ALIGNMENT for s in self.states), default=0)

    @property
    def is_open(self) -> bool:
        """Whether the open converter made it."""
        return self.words.magic == own.MAGIC

    @property
    def stamp(self) -> Stamp:
        """Converter, format version and target."""
        if not self.is_open:
            return Stamp("eiq_neutron_sdk", None, None, "NXP's Neutron runtime")
        header = own.unpack(own.Header, self.microcode)
        number = header.converter_version
        return Stamp(
            converter=f"{header.name} {number >> 16}.{number >> 8 & 255}.{number & 255}",
            format_version=header.format_version,
            target=own.TARGET_NAMES.get(header.target, f"unknown (id {header.target})"),
            runs_on="OpenNeutron's firmware and simulator",
        )


def build_payload(
    model: ConvertedModel,
    inputs: tuple[Port, ...],
    outputs: tuple[Port, ...],
    input_args: int,
    profiling: bool = False,
) -> Payload:
    """The payload of a converted model; the ports say which arguments its inputs and outputs are."""
    # Only NXP's profiling microcode moves the words; ours keeps one layout.
    stock = read_words(model.microcode).magic == STOCK_MAGIC
    version = PROFILING if profiling and stock else PLAIN
    return Payload(inputs, outputs, input_args, model.microcode, model.weights, model.kernels, version)


def pack(payload: Payload) -> bytes:
    """The payload as bytes."""
    counts = (len(payload.inputs), len(payload.outputs), payload.input_args)
    ports = (*payload.inputs, *payload.outputs)
    for what, value in (
        ("inputs", counts[0]),
        ("outputs", counts[1]),
        ("arguments", counts[2]),
        *(("argument index", p.argument) for p in ports),
    ):
        if not 0 <= value <= _MOST:
            fail(
                "ON420",
                "payload",
                f"{value} {what}: the format holds at most {_MOST}",
                "Split the model, or merge its inputs and outputs.",
            )
    header = bytes((*counts, *(p.format for p in ports), *(p.argument for p in ports), payload.version))
    return b"".join(map(_padded, (header, payload.microcode, payload.weights, payload.kernels)))


def parse(raw: bytes, where: str = "payload") -> Payload:
    """Take a payload apart; bytes that are not a whole payload are a diagnostic."""
    if len(raw) < 4:
        _damaged(where, f"{len(raw)} bytes are too few for a header")
    inputs, outputs, input_args = (raw[at] for at in (INPUTS_AT, OUTPUTS_AT, INPUT_ARGS_AT))
    ports = inputs + outputs
    size = PORTS_AT + 2 * ports + 1
    if len(raw) < size:
        _damaged(where, f"{len(raw)} bytes are too few for a header of {inputs} inputs and {outputs} outputs")
    formats, maps = (raw[at : at + ports] for at in (PORTS_AT, PORTS_AT + ports))
    version = raw[size - 1]
    if version not in (PLAIN, PROFILING):
        fail(
            "ON421",
            where,
            f"payload version {version}; this version of openneutron knows {PLAIN} and {PROFILING}",
            "It was made by a newer version: update openneutron, or compile the model again.",
        )
    if bad := [f for f in formats if f not in (AS_IS, CHANNELS_LAST)]:
        _damaged(where, f"format flag {bad[0]} is neither {AS_IS} nor {CHANNELS_LAST}")
    if bad := [m for m in maps[:inputs] if m >= input_args]:
        _damaged(where, f"an input is argument {bad[0]} of {input_args}")
    at = _align(size)
    if len(raw) < at + 4 * word_count(version):
        _damaged(where, f"{len(raw)} bytes are too few for a microcode")
    words = read_words(raw[at:], version)
    if words.magic not in (own.MAGIC, STOCK_MAGIC):
        _damaged(where, f"the microcode has magic {words.magic:#010x}, neither OpenNeutron's nor NXP's")
    if (words.inputs, words.outputs) != (inputs, outputs):
        _damaged(
            where,
            f"the header has {inputs} inputs and {outputs} outputs, the microcode {words.inputs} and "
            f"{words.outputs}",
        )
    weights_at = at + _align(words.microcode_bytes)
    kernels_at = weights_at + _align(words.weights_bytes)
    if words.microcode_bytes < 4 * word_count(version) or len(raw) < kernels_at:
        _damaged(where, f"truncated: {len(raw)} bytes, microcode and weights alone end at {kernels_at}")
    all_ports = [Port(m, f) for m, f in zip(maps, formats, strict=True)]
    payload = Payload(
        inputs=tuple(all_ports[:inputs]),
        outputs=tuple(all_ports[inputs:]),
        input_args=input_args,
        microcode=raw[at : at + words.microcode_bytes],
        weights=raw[weights_at : weights_at + words.weights_bytes],
        kernels=raw[kernels_at:],
        version=version,
    )
    return payload


def check_fits(payload: Payload, target: str | None, where: str = "payload") -> None:
    """Refuse a payload that firmware of this version, for `target` or any, cannot run; both are named."""
    if not payload.is_open:
        fail(
            "ON421",
            where,
            "the payload was made by NXP's converter (eiq_neutron_sdk) and runs on NXP's runtime "
            f"only; this is OpenNeutron's runtime, microcode format {own.FORMAT_VERSION}",
            "Compile the model with --converter open to run it here.",
        )
    stamp = payload.stamp
    if stamp.format_version != own.FORMAT_VERSION:
        fail(
            "ON421",
            where,
            f"the payload has microcode format {stamp.format_version} (made by {stamp.converter}); "
            f"this runtime runs format {own.FORMAT_VERSION}",
            "Compile the model again with this openneutron, or run it with the one that made it.",
        )
    if target is not None and stamp.target != target:
        fail(
            "ON421",
            where,
            f"the payload was compiled for {stamp.target}, this is {target}",
            f"Compile the model again for {target}.",
        )
    if stamp.target not in own.TARGET_IDS.keys() | {own.INVENTED_NAME}:
        fail("ON421", where, f"the payload was compiled for a target that is {stamp.target}",
             "Run it with the version of openneutron that made it.")  # fmt: skip


def _align(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _padded(part: bytes) -> bytes:
    return part + bytes(_align(len(part)) - len(part))


def _damaged(where: str, problem: str) -> NoReturn:
    fail("ON420", where, problem, "The file is damaged or incomplete: copy or compile it again.")


def check_one_target(payloads: Sequence[Payload], where: str) -> str:
    """The chip that all payloads of a program were compiled for; what cannot run is refused."""
    first: str | None = None
    for i, payload in enumerate(payloads):
        check_fits(payload, first, f"{where}: delegate {i}")
        first = payload.stamp.target
    return first or DEFAULT_TARGET

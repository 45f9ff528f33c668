"""Methods of one program that have buffers in common: what one writes, the others read.

They are told by the tensors themselves: a buffer that several of the given modules hold is one. A sequence
goes through the methods, each frame in one of them, and state is carried from frame to frame whichever it is.
So every method sees the state that it will meet, and a state has one scale, of all that it is anywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule
from torch.utils import _pytree as pytree
from torchao.quantization.pt2e.quantizer import Quantizer

from openneutron.diagnostics import fail, nearest
from openneutron.quantize.annotation.number_formats import Scheme
from openneutron.quantize.export import as_tuple
from openneutron.quantize.loop import calibrate_and_quantize
from openneutron.quantize.plan import AccuracyPlan
from openneutron.quantize.samples import EXAMPLES, check_sample, from_everywhere, said_of, spread_over
from openneutron.quantize.sequences import kept_back
from openneutron.quantize.stateful import (
    Inputs,
    WithStatePorts,
    frames_of,
    rename_buffers,
    with_state_ports,
    written_buffers,
)
from openneutron.tensors import plain_inputs

Model = torch.nn.Module | ExportedProgram
NamedFrame = tuple[str, Inputs]
"""The method that is run, and its inputs."""
Step = tuple[str, Inputs, list[torch.Tensor]]
"""The same with the state that it meets behind its inputs, and what that becomes."""


def have_common_buffers(models: Mapping[str, Model]) -> bool:
    """Whether several of the methods hold the same buffer."""
    counts = Counter(tensor for model in models.values() for tensor in set(_buffers(model).values()))
    return len(models) > 1 and any(holders > 1 for holders in counts.values())


def name_shared(models: Mapping[str, Model], exported: Mapping[str, ExportedProgram]) -> set[str]:
    """Give the buffers that methods have in common, and one of them writes to, one name in all of them."""
    held = {name: _buffers(model) for name, model in models.items()}
    counts = Counter(tensor for buffers in held.values() for tensor in set(buffers.values()))
    written = {
        held[name].get(buffer) for name, program in exported.items() for buffer in written_buffers(program)
    }
    shared: dict[Any, str] = {}
    for buffers in held.values():
        for own, tensor in buffers.items():
            if counts[tensor] > 1 and tensor in written and tensor not in shared:
                shared[tensor] = _free_name(own, tensor, held, shared)
    for name, program in exported.items() if shared else ():
        rename_buffers(program, {own: shared[t] for own, t in held[name].items() if t in shared})
    return set(shared.values())


def _free_name(name: str, tensor: Any, held: Mapping[str, dict[str, Any]], taken: Mapping[Any, str]) -> str:
    while name in taken.values() or any(found.get(name, tensor) != tensor for found in held.values()):
        name += "_"
    return name


def _buffers(model: Model) -> dict[str, Any]:
    """The buffers of a model, each with what tells its tensor from all others."""
    if isinstance(model, ExportedProgram):
        values = {**model.state_dict, **model.constants}
        named = {name: values[name] for name in model.graph_signature.buffers if name in values}
    else:
        named = dict(model.named_buffers(remove_duplicate=False))
    return {
        name: (t.untyped_storage().data_ptr(), t.storage_offset(), t.shape, t.stride(), t.dtype)
        for name, t in named.items()
        if isinstance(t, torch.Tensor) and t.layout is torch.strided and t.numel()
    }


def named_frames(calibration: Any, methods: Sequence[str]) -> list[list[NamedFrame]]:
    """Sequences of frames with the method of each.

    A dictionary has samples for each method: the first of all methods are one sequence, in their order.
    """
    if isinstance(calibration, Mapping):
        own = [[[(m, f) for f in frames_of(s)] for s in calibration.get(m, ())] for m in methods]
        return [[frame for part in parts for frame in part] for parts in zip_longest(*own, fillvalue=[])]
    sequences = []
    for sequence in calibration:
        for frame in sequence:
            known = isinstance(frame, tuple) and len(frame) == 2 and isinstance(frame[0], str)
            if not known or frame[0] not in methods:
                named = frame[0] if known else type(frame).__name__
                fail("ON104", "calibration", f"a frame is of no method: {named}",
                     "The methods share state: give lists of (method, inputs), or a dictionary by method. "
                     + nearest(str(named), list(methods)))  # fmt: skip
        sequences.append([(name, plain_inputs(as_tuple(inputs))) for name, inputs in sequence])
    return sequences


def quantize_together(
    exported: Mapping[str, ExportedProgram],
    shared: set[str],
    sequences: Sequence[list[NamedFrame]],
    make_quantizer: Callable[[list[Inputs], Any], Quantizer],
    plan: AccuracyPlan,
) -> dict[str, GraphModule]:
    """The quantized methods: what they share has one scale."""
    for _, frame in (frame for frames in sequences for frame in frames):
        check_sample(frame, 0)
    fitted, _ = kept_back(sequences)
    together = Together.of(exported, shared)
    steps = list(together.walk(fitted))
    found = {}
    for name, ports in together.with_parameters(steps).methods.items():
        samples = [sample for method, sample, _ in steps if method == name]
        if not samples:
            fail("ON209", "calibration", f"no frame is of the method {name}", "Give every method inputs.")
        quantizer = make_quantizer(spread_over(samples, EXAMPLES), ports.pairs)
        samples = [*from_everywhere(samples), samples[0]]
        made = calibrate_and_quantize(ports.program, samples, quantizer, accuracy=plan)
        found[name] = ports.with_buffers(made)
    _hold_the_same(found, shared)
    return found


def _hold_the_same(models: Mapping[str, GraphModule], shared: set[str]) -> None:
    """Let the methods have their states in common, as those have that they were made of."""
    first: dict[str, torch.Tensor] = {}
    for model in models.values():
        for name, buffer in list(model.named_buffers()):
            if name in shared:
                owner, _, own = name.rpartition(".")
                setattr(model.get_submodule(owner), own, first.setdefault(name, buffer))


@dataclass(frozen=True)
class Together:
    """Methods as programs that remember nothing, and the names of the states that they have in common."""

    methods: dict[str, WithStatePorts]
    shared: set[str]

    @staticmethod
    def of(exported: Mapping[str, ExportedProgram], shared: set[str]) -> Together:
        """The methods; one without a state is one with none."""
        return Together({name: _ports(program, shared) for name, program in exported.items()}, shared)

    def walk(self, sequences: Iterable[list[NamedFrame]]) -> Iterator[Step]:
        """Every frame with its method and the state that it meets, and what its states become."""
        runs = {name: ports.program.module(check_guards=False) for name, ports in self.methods.items()}
        for frames in sequences:
            now: dict[Any, torch.Tensor] = {}
            for number, (name, frame) in enumerate(frames):
                states = self.methods[name].states
                keys = [port.buffer if port.buffer in self.shared else (name, port.buffer) for port in states]
                held = [now.get(key, port.initial).clone() for key, port in zip(keys, states, strict=True)]
                sample = (*pytree.tree_leaves(frame), *held)
                with torch.no_grad(), said_of(f"calibration, frame {number} of a sequence"):
                    found = pytree.tree_leaves(runs[name](*sample))
                after = [t.clone() for t in found[len(found) - len(keys) :]]
                now.update(zip(keys, after, strict=True))
                yield name, sample, after

    def with_parameters(self, steps: Iterable[Step]) -> Together:
        """The same with a scale and a zero point for each shared state, of all that it is anywhere."""
        observers: dict[str, Any] = {}
        for ports in self.methods.values():
            for port in ports.states:
                if port.buffer in self.shared and port.initial.is_floating_point():
                    made = observers.get(port.buffer) or Scheme().activation().observer_or_fake_quant_ctr(
                        dtype=torch.int8, quant_min=-128, quant_max=127, qscheme=torch.per_tensor_affine
                    )
                    made(port.initial)
                    observers[port.buffer] = made
        for name, _, after in steps:
            for port, value in zip(self.methods[name].states, after, strict=True):
                if port.buffer in observers:
                    observers[port.buffer](value)
        found = {}
        for name, observer in observers.items():
            scale, zero = observer.calculate_qparams()
            found[name] = float(scale), int(zero)

        def given(ports: WithStatePorts) -> WithStatePorts:
            states = tuple(replace(port, parameters=found.get(port.buffer)) for port in ports.states)
            return replace(ports, states=states)

        return Together({name: given(ports) for name, ports in self.methods.items()}, self.shared)


def _ports(program: ExportedProgram, shared: set[str]) -> WithStatePorts:
    names = shared & {*program.graph_signature.buffers}
    made = with_state_ports(program, names)
    return made or WithStatePorts(program, (), program.module(check_guards=False))

"""Compile options, and their form as ExecuTorch compile specs: one per field that is set, found by its key.

executorch is imported inside functions only, so that the command line starts without it.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from openneutron.diagnostics import fail, nearest
from openneutron.targets.table import DEFAULT_TARGET, find_target

if TYPE_CHECKING:
    from executorch.exir.backend.compile_spec_schema import CompileSpec

CONVERTERS = ("open", "eiq")
AIMS = ("performance", "size")
CONVERTER_VARIABLE = "OPENNEUTRON_CONVERTER"


def default_converter() -> str:
    """The converter named by the environment, or 'open'."""
    name = os.environ.get(CONVERTER_VARIABLE) or "open"
    if name not in CONVERTERS:
        fail(
            "ON104",
            f"environment variable {CONVERTER_VARIABLE}",
            _unknown("converter", name),
            _known_converters(name),
        )
    return name


@dataclass(frozen=True)
class CompileOptions:
    """Everything that decides how a partition is compiled. Checked when made: an instance is always valid."""

    config: str = DEFAULT_TARGET
    """The platform: a target id."""
    extra_flags: str | None = None
    """Further flags for the eiq converter; the open converter has none and refuses them."""
    intermediates_dir: str | None = None
    """Where to keep `*_pure.et.tflite` and `*_neutron.et.tflite`."""
    operators_not_to_delegate: tuple[str, ...] = ()
    """Operators that stay on the CPU, by exact name (`aten::add` does not mean addmm)."""
    use_neutron_for_format_conversion: bool = True
    """The NPU transposes NCHW <-> NHWC at the partition's edges; otherwise the runtime does."""
    fetch_constants_to_sram: bool = False
    """Weights stay in flash and are prefetched into SRAM, for models that do not fit."""
    dump_kernel_selection_code: bool = False
    """Write `*_kernel_selection.c`, which links only the kernels the model needs."""
    kernel_selection_dir: str | None = None
    """Where each partition's file goes while it is lowered; None: one for the program, when it is saved."""
    use_profiling: bool = False
    """Record times inside the NPU program."""
    converter: str = field(default_factory=default_converter)
    """'open' (our compiler and firmware) or 'eiq' (NXP's SDK, for NXP silicon)."""
    sram_bytes: int | None = None
    """SRAM the program may use; None: all the target has."""
    optimise: str = "performance"
    """'performance': the least SRAM without added cycles; 'size': the least SRAM within `cycle_budget`."""
    cycle_budget: float = 0.05
    """The share of (estimated) cycles that 'size' may add."""
    keep_inputs: bool | None = None
    """'size' leaves inputs and outputs in buffers of their own; else they lie in one arena with the rest.
    None: where that arena is planned with the rest of the program, as `compile_model` does."""

    def __post_init__(self) -> None:
        self._normalize()
        self._check_types()
        self._check_target()
        self._check_aim()

    def _normalize(self) -> None:
        # Paths and lists are what people have at hand; the stored form is hashable and JSON-able.
        for key in ("intermediates_dir", "kernel_selection_dir"):
            if isinstance(value := getattr(self, key), os.PathLike):
                object.__setattr__(self, key, os.fspath(value))
        names: Any = self.operators_not_to_delegate
        if names is None:
            names = ()
        if isinstance(names, str) or not isinstance(names, Iterable):
            _wrong_type("operators_not_to_delegate", "a list of operator names", names)
        names = tuple(names)
        for name in names:
            _check_type("operators_not_to_delegate", "a list of operator names", name, str)
        object.__setattr__(self, "operators_not_to_delegate", names)
        if isinstance(self.cycle_budget, int) and not isinstance(self.cycle_budget, bool):
            object.__setattr__(self, "cycle_budget", float(self.cycle_budget))

    def _check_types(self) -> None:
        for key in _BOOLEANS:
            _check_type(key, "True or False", getattr(self, key), bool)
        _check_type("keep_inputs", "True, False or None", self.keep_inputs, bool, type(None))
        for key in ("extra_flags", "intermediates_dir", "kernel_selection_dir"):
            _check_type(key, "a string or None", getattr(self, key), str, type(None))
        _check_type("sram_bytes", "a number of bytes or None", self.sram_bytes, int, type(None))
        if isinstance(self.sram_bytes, bool):
            _wrong_type("sram_bytes", "a number of bytes or None", self.sram_bytes)
        _check_type("cycle_budget", "a number from 0 on", self.cycle_budget, float)

    def _check_target(self) -> None:
        """The converter, its target, and what they take."""
        if self.converter not in CONVERTERS:
            fail(
                "ON104",
                "option converter",
                _unknown("converter", self.converter),
                _known_converters(self.converter),
            )
        target = find_target(self.config, self.converter)
        if self.fetch_constants_to_sram and target.reads_flash and self.converter == "open":
            fail(
                "ON104",
                "option fetch_constants_to_sram",
                f"the NPU of {target.chip} reads weights where they lie in flash",
                "Leave it out",
            )
        if self.extra_flags and self.converter == "open":
            fail(
                "ON104",
                "option extra_flags",
                f"the open converter takes no extra flags (got '{self.extra_flags}')",
                "Leave them out, or choose the eiq converter",
            )

    def _check_aim(self) -> None:
        """How much memory there is, and what it is saved for."""
        if self.sram_bytes is not None and self.sram_bytes <= 0:
            fail(
                "ON104",
                "option sram_bytes",
                f"must be positive (got {self.sram_bytes})",
                "Leave it out to use all SRAM",
            )
        if self.optimise not in AIMS:
            fail("ON104", "option optimise", f"must be one of {', '.join(AIMS)} (got {self.optimise!r})")
        if self.optimise == "size" and self.converter != "open":
            fail(
                "ON104",
                "option optimise",
                f"the {self.converter} converter cannot optimise for size",
                "Leave it out, or choose the open converter",
            )
        if not self.cycle_budget >= 0:
            fail("ON104", "option cycle_budget", f"must not be negative (got {self.cycle_budget})")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> CompileOptions:
        """Options from field names and values; an unknown name is an error."""
        names = option_names()
        for key in values:
            if key not in names:
                fail("ON103", "compile options", f"there is no option '{key}'", nearest(str(key), names))
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Field names and values; `from_dict` is the inverse."""
        return {key: getattr(self, key) for key in option_names()}

    def to_compile_specs(self) -> list[CompileSpec]:
        """One compile spec per field that is set; the value is JSON in UTF-8."""
        from executorch.exir.backend.compile_spec_schema import CompileSpec

        given = {key: value for key, value in self.to_dict().items() if value is not None}
        return [CompileSpec(key, json.dumps(value).encode()) for key, value in given.items()]

    @classmethod
    def from_compile_specs(cls, specs: Iterable[CompileSpec]) -> CompileOptions:
        """The inverse of `to_compile_specs`, in any order; a field that is missing has its default."""
        values: dict[str, Any] = {}
        for spec in specs:
            if spec.key in values:
                fail("ON104", f"compile spec '{spec.key}'", "is given twice", "Keep one of them")
            try:
                values[spec.key] = json.loads(bytes(spec.value).decode())
            except ValueError:
                # An unknown key is the likelier mistake (specs of another backend), so say that first.
                if spec.key in option_names():
                    fail(
                        "ON104",
                        f"compile spec '{spec.key}'",
                        f"the value is not JSON in UTF-8: {bytes(spec.value)[:40]!r}",
                        "Make compile specs with generate_neutron_compile_spec",
                    )
                values[spec.key] = None
        return cls.from_dict(values)


_BOOLEANS = (
    "use_neutron_for_format_conversion",
    "fetch_constants_to_sram",
    "dump_kernel_selection_code",
    "use_profiling",
)


def option_names() -> tuple[str, ...]:
    """The names of all compile options, which are the compile-spec keys too."""
    return tuple(f.name for f in fields(CompileOptions))


@dataclass(frozen=True)
class CustomDelegationOptions:
    """What the partitioner delegates beyond or below its default."""

    allow_no_op_partitions: bool = False
    """Delegate a partition even if it only holds operators that compute nothing."""

    def __post_init__(self) -> None:
        _check_type("allow_no_op_partitions", "True or False", self.allow_no_op_partitions, bool)


def generate_neutron_compile_spec(
    config: str,
    system_config: str | None = None,
    extra_flags: str | None = None,
    intermediates_dir: str | None = None,
    operators_not_to_delegate: Iterable[str] | None = None,
    use_neutron_for_format_conversion: bool = True,
    fetch_constants_to_sram: bool = False,
    dump_kernel_selection_code: bool = False,
    use_profiling: bool = False,
    *,
    converter: str | None = None,
    sram_bytes: int | None = None,
    optimise: str = "performance",
    cycle_budget: float = 0.05,
    keep_inputs: bool | None = None,
) -> list[CompileSpec]:
    """Compile specs for `NeutronPartitioner`; same arguments as ExecuTorch's NXP backend, then our own.

    `system_config` is there for callers that pass it by position. Nothing about a Neutron-C system is
    configurable, so a value has no effect, and a warning says so. With `dump_kernel_selection_code` every
    partition's file is written to `intermediates_dir`, or else to the working directory, as it is lowered:
    the caller serializes the program, so there is no later moment. `keep_inputs` is for `optimise="size"`:
    False puts inputs and outputs into the delegate's memory, which pays only where that memory is planned
    with the rest: `to_executorch(ExecutorchBackendConfig(memory_planning_pass=ArenaPlanning()))`.
    """
    _check_type("system_config", "a string or None", system_config, str, type(None))
    if system_config is not None:
        warnings.warn(f"system_config='{system_config}' has no effect for {config}", stacklevel=2)
    return CompileOptions(
        config=config,
        extra_flags=extra_flags,
        intermediates_dir=intermediates_dir,
        operators_not_to_delegate=operators_not_to_delegate,  # type: ignore[arg-type]  # made a tuple there
        use_neutron_for_format_conversion=use_neutron_for_format_conversion,
        fetch_constants_to_sram=fetch_constants_to_sram,
        dump_kernel_selection_code=dump_kernel_selection_code,
        kernel_selection_dir=(intermediates_dir or os.getcwd()) if dump_kernel_selection_code else None,
        use_profiling=use_profiling,
        converter=default_converter() if converter is None else converter,
        sram_bytes=sram_bytes,
        optimise=optimise,
        cycle_budget=cycle_budget,
        keep_inputs=keep_inputs,
    ).to_compile_specs()


class NeutronCompileSpecBuilder:
    """The builder form of `generate_neutron_compile_spec`; its order of arguments is NXP's, too."""

    def __init__(self) -> None:
        self._specs: list[CompileSpec] | None = None

    def neutron_compile_spec(
        self,
        config: str,
        intermediates_dir: str | None = None,
        extra_flags: str | None = None,
        operators_not_to_delegate: Iterable[str] | None = None,
        use_neutron_for_format_conversion: bool = True,
        fetch_constants_to_sram: bool = False,
        dump_kernel_selection_code: bool = False,
        use_profiling: bool = False,
        **own: Any,
    ) -> NeutronCompileSpecBuilder:
        """Set the options; the keywords are those of `generate_neutron_compile_spec`."""
        given = {name: value for name, value in locals().items() if name not in ("self", "own")} | own
        self._specs = generate_neutron_compile_spec(**given)
        return self

    def build(self) -> list[CompileSpec]:
        """The compile specs."""
        if self._specs is None:
            fail(
                "ON104",
                "NeutronCompileSpecBuilder",
                "build() was called before the platform was given",
                f"Call .neutron_compile_spec('{DEFAULT_TARGET}').build()",
            )
        return list(self._specs)


def _check_type(key: str, expected: str, value: object, *types: type) -> None:
    if not isinstance(value, types):
        _wrong_type(key, expected, value)


def _wrong_type(key: str, expected: str, value: object) -> None:
    fail("ON104", f"option {key}", f"must be {expected} (got {type(value).__name__} {value!r})")


def _unknown(what: str, value: object) -> str:
    return f"'{value}' is not a known {what}"


def _known_converters(value: object) -> str:
    return nearest(str(value), CONVERTERS)

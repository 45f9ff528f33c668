"""Compile options: round trip by key, and a clear error for everything that is not an option."""

import random
from pathlib import Path

import pytest
from executorch.exir.backend.compile_spec_schema import CompileSpec
from hypothesis import given
from hypothesis import strategies as st

from openneutron.diagnostics import OpenNeutronError
from openneutron.options import (
    CompileOptions,
    CustomDelegationOptions,
    NeutronCompileSpecBuilder,
    generate_neutron_compile_spec,
    option_names,
)

text = st.text(st.characters(codec="utf-8"), max_size=20)
options = st.builds(
    CompileOptions,
    config=st.just("imxrt700"),
    extra_flags=st.none() | text,
    intermediates_dir=st.none() | text,
    operators_not_to_delegate=st.lists(text, max_size=4).map(tuple),
    use_neutron_for_format_conversion=st.booleans(),
    fetch_constants_to_sram=st.booleans(),
    dump_kernel_selection_code=st.booleans(),
    use_profiling=st.booleans(),
    converter=st.just("eiq"),
    sram_bytes=st.none() | st.integers(1, 1 << 40),
    cycle_budget=st.floats(0, 10),
)


@given(options, st.randoms(use_true_random=False))
def test_compile_specs_round_trip_in_any_order(value: CompileOptions, rng: random.Random):
    specs = value.to_compile_specs()
    assert [spec.key for spec in specs] == [
        name for name in option_names() if getattr(value, name) is not None
    ]
    rng.shuffle(specs)
    assert CompileOptions.from_compile_specs(specs) == value


def test_values_are_json_of_the_right_type():
    specs = {s.key: s.value for s in CompileOptions(use_profiling=True).to_compile_specs()}
    assert specs["use_profiling"] == b"true"
    assert specs["config"] == b'"imxrt700"'
    assert "sram_bytes" not in specs


def test_generate_has_the_signature_users_know():
    by_position = generate_neutron_compile_spec(
        "imxrt700", None, None, "steps", ["aten::add"], False, True, True, True
    )
    value = CompileOptions.from_compile_specs(by_position)
    assert value == CompileOptions(
        config="imxrt700",
        intermediates_dir="steps",
        operators_not_to_delegate=("aten::add",),
        use_neutron_for_format_conversion=False,
        fetch_constants_to_sram=True,
        dump_kernel_selection_code=True,
        kernel_selection_dir="steps",
        use_profiling=True,
    )
    defaults = CompileOptions.from_compile_specs(generate_neutron_compile_spec("imxrt700"))
    assert defaults == CompileOptions()
    assert defaults.use_neutron_for_format_conversion
    assert not (defaults.fetch_constants_to_sram or defaults.use_profiling)


def test_system_config_is_accepted_and_said_to_be_without_effect():
    with pytest.warns(UserWarning, match="no effect"):
        specs = generate_neutron_compile_spec("imxrt700", "some_system")
    assert specs == generate_neutron_compile_spec("imxrt700")


def test_builder_equals_function_and_needs_a_platform():
    built = NeutronCompileSpecBuilder().neutron_compile_spec("imxrt700", use_profiling=True).build()
    assert built == generate_neutron_compile_spec("imxrt700", use_profiling=True)
    by_position = ("imxrt700", "steps", None, ["aten::add"], False, True)  # not the function's order
    built = NeutronCompileSpecBuilder().neutron_compile_spec(*by_position).build()
    value = CompileOptions.from_compile_specs(built)
    assert (value.intermediates_dir, value.operators_not_to_delegate) == ("steps", ("aten::add",))
    assert value.fetch_constants_to_sram and not value.use_neutron_for_format_conversion
    with pytest.raises(OpenNeutronError, match="before the platform"):
        NeutronCompileSpecBuilder().build()


def test_paths_and_lists_are_taken():
    value = CompileOptions(intermediates_dir=Path("a") / "b", operators_not_to_delegate=["aten::relu"])
    assert value.intermediates_dir == str(Path("a") / "b")
    assert value.operators_not_to_delegate == ("aten::relu",)
    hash(value)


def test_converter_comes_from_the_environment_unless_given(monkeypatch):
    monkeypatch.delenv("OPENNEUTRON_CONVERTER", raising=False)
    assert CompileOptions().converter == "open"
    monkeypatch.setenv("OPENNEUTRON_CONVERTER", "eiq")
    assert CompileOptions().converter == "eiq"
    assert CompileOptions(converter="open").converter == "open"
    monkeypatch.setenv("OPENNEUTRON_CONVERTER", "opn")
    with pytest.raises(OpenNeutronError, match=r"OPENNEUTRON_CONVERTER.*'opn'") as error:
        CompileOptions()
    assert "Did you mean 'open'?" in error.value.diagnostic.hint


@pytest.mark.parametrize(
    ("values", "code", "says"),
    [
        ({"fetch_constants_to_ram": True}, "ON103", "Did you mean 'fetch_constants_to_sram'?"),
        ({"config": "imxrt7000"}, "ON101", "Did you mean 'imxrt700'?"),
        ({"config": "imx95"}, "ON102", "Neutron-S"),
        ({"config": 7}, "ON104", "string"),
        ({"use_profiling": "True"}, "ON104", "True or False (got str 'True')"),
        ({"use_profiling": 1}, "ON104", "True or False"),
        ({"operators_not_to_delegate": "aten::add"}, "ON104", "a list of operator names"),
        ({"operators_not_to_delegate": [3]}, "ON104", "a list of operator names"),
        ({"converter": "vendor"}, "ON104", "Known: eiq, open"),
        ({"sram_bytes": 0}, "ON104", "must be positive (got 0)"),
        ({"optimise": "speed"}, "ON104", "must be one of performance, size (got 'speed')"),
        ({"optimise": "size", "converter": "eiq"}, "ON104", "eiq converter cannot optimise for size"),
        ({"cycle_budget": -0.1}, "ON104", "must not be negative (got -0.1)"),
        ({"cycle_budget": "5%"}, "ON104", "a number from 0 on"),
        ({"sram_bytes": True}, "ON104", "number of bytes"),
        ({"sram_bytes": 1.5}, "ON104", "number of bytes"),
        ({"extra_flags": "--fast", "converter": "open"}, "ON104", "takes no extra flags"),
        ({"intermediates_dir": 3}, "ON104", "a string or None"),
    ],
)
def test_bad_values_name_the_option_and_what_is_known(values, code, says):
    with pytest.raises(OpenNeutronError) as error:
        CompileOptions.from_dict(values)
    assert error.value.diagnostic.code == code
    assert says in str(error.value)
    assert next(iter(values)) in str(error.value) or "config" in values


@pytest.mark.parametrize(
    ("specs", "code", "says"),
    [
        ([CompileSpec("use_profiling", b"True")], "ON104", "not JSON"),
        ([CompileSpec("use_profiling", b"\xff")], "ON104", "not JSON"),
        ([CompileSpec("output_format", b"tosa")], "ON103", "there is no option 'output_format'"),
        ([CompileSpec("config", b'"imxrt700"')] * 2, "ON104", "given twice"),
    ],
)
def test_foreign_compile_specs_are_refused(specs, code, says):
    with pytest.raises(OpenNeutronError) as error:
        CompileOptions.from_compile_specs(specs)
    assert error.value.diagnostic.code == code
    assert says in str(error.value)


def test_custom_delegation_options():
    assert CustomDelegationOptions().allow_no_op_partitions is False
    assert CustomDelegationOptions(allow_no_op_partitions=True).allow_no_op_partitions is True
    with pytest.raises(OpenNeutronError, match="allow_no_op_partitions"):
        CustomDelegationOptions(allow_no_op_partitions="yes")

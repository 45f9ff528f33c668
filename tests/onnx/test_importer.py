"""Importing: names, shapes, folding, external data; and what bad files get."""

from __future__ import annotations

import time

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from openneutron.cli import main
from openneutron.diagnostics import OpenNeutronError
from openneutron.onnx import load_onnx
from tests.onnx.graphs import model, run_onnxruntime, save, value

RELU = helper.make_node("Relu", ["x"], ["y"], name="act")


def refuse(path, code, *words, **shapes):
    with pytest.raises(OpenNeutronError) as caught:
        load_onnx(path, shapes)
    text = str(caught.value)
    assert caught.value.diagnostic.code == code, text
    for word in words:
        assert word in text
    return text


def flattening(folder, dims=("batch", 3, 4, 4)):
    """A network that flattens as exporters do it: the batch read from the shape."""
    weights = {
        "zero": np.array(0),
        "rest": np.array([-1]),
        "axes": np.array([0]),
        "w": np.ones((48, 2), np.float32),
    }
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"], name="shape"),
        helper.make_node("Gather", ["shape", "zero"], ["batch"], name="gather"),
        helper.make_node("Unsqueeze", ["batch", "axes"], ["batches"], name="unsqueeze"),
        helper.make_node("Concat", ["batches", "rest"], ["wanted"], name="concat", axis=0),
        helper.make_node("Reshape", ["x", "wanted"], ["flat"], name="flatten"),
        helper.make_node("MatMul", ["flat", "w"], ["y"], name="last/layer"),
    ]
    return save(model(nodes, [value("x", dims)], [value("y", None)], weights), folder)


def test_arithmetic_on_shapes_is_folded_and_names_are_kept(tmp_path):
    module = load_onnx(flattening(tmp_path))
    program = module.export_program(module.example_inputs)
    calls = [n.name for n in program.graph.nodes if n.op == "call_function"]
    assert calls == ["flatten", "last_layer"]
    assert module.input_names == ("x",) and module.example_inputs[0].shape == (1, 3, 4, 4)


def test_open_dimensions_are_named_and_settled(tmp_path):
    path = flattening(tmp_path, ("batch", 3, "height", "width"))
    refuse(path, "ON905", "'x'", "dimension 2 ('height')", "--shape x=1,3,N,N")
    assert load_onnx(path, {"x": (2, 3, 4, 4)})(torch.zeros(2, 3, 4, 4)).shape == (2, 2)
    refuse(path, "ON104", "no input 'y'", y=(1,))
    refuse(path, "ON104", "does not fit", x=(1, 4, 4, 4))


def test_a_branch_with_a_known_condition_is_inlined(tmp_path):
    branches = {
        name: helper.make_graph([helper.make_node(op, ["x"], [name])], name, [], [value(name, [2])])
        for name, op in (("then_branch", "Relu"), ("else_branch", "Neg"))
    }
    nodes = [
        helper.make_node("Equal", ["rate", "wanted"], ["same"]),
        helper.make_node("If", ["same"], ["y"], name="choice", **branches),
    ]
    inputs = [value("x", [2]), value("rate", [], TensorProto.INT64)]
    path = save(model(nodes, inputs, [value("y", [2])], {"wanted": np.array(16000)}), tmp_path)
    refuse(path, "ON905", "choice", "--fix")
    x = torch.tensor([-1.0, 2.0])
    assert load_onnx(path, fixed={"rate": 16000})(x).tolist() == [0.0, 2.0]
    assert load_onnx(path, fixed={"rate": 8000})(x).tolist() == [1.0, -2.0]


def test_half_precision_is_computed_in_float32(tmp_path):
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=TensorProto.FLOAT16),
        helper.make_node("Mul", ["h", "w"], ["y"]),
    ]
    inputs, outputs = [value("x", [2])], [value("y", [2], TensorProto.FLOAT16)]
    module = load_onnx(save(model(nodes, inputs, outputs, {"w": np.array([2, 3], np.float16)}), tmp_path))
    y = module(torch.tensor([1.0, 2.0]))
    assert y.dtype == torch.float32 and y.tolist() == [2.0, 6.0]


def test_a_function_of_the_model_and_an_operator_with_a_body(tmp_path):
    opset = helper.make_opsetid("", 21)
    body = [helper.make_node("Mul", ["a", "a"], ["b"])]
    function = helper.make_function("own", "Square", ["a"], ["b"], body, [opset])
    made = model(
        [
            helper.make_node("Square", ["x"], ["s"], domain="own"),
            helper.make_node("AffineGrid", ["t", "size"], ["y"]),
        ],
        [value("x", [3]), value("t", [2, 2, 3])],
        [value("s", [3]), value("y", None)],
        {"size": np.array([2, 1, 2, 3])},
    )
    made.functions.append(function)
    made.opset_import.append(helper.make_opsetid("own", 1))
    module = load_onnx(save(made, tmp_path))
    square, grid = module(torch.tensor([1.0, 2.0, 3.0]), torch.eye(2, 3).expand(2, 2, 3))
    assert square.tolist() == [1.0, 4.0, 9.0]
    wanted = torch.nn.functional.affine_grid(
        torch.eye(2, 3).expand(2, 2, 3), [2, 1, 2, 3], align_corners=False
    )
    torch.testing.assert_close(grid, wanted)


def external(folder, location, size=16):
    """A model whose weight lies in another file."""
    made = model([helper.make_node("Add", ["x", "w"], ["y"])], [value("x", [4])], [value("y", [4])])
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, text in (("location", location), ("offset", "0"), ("length", str(size))):
        weight.external_data.add(key=key, value=text)
    made.graph.initializer.append(weight)
    path = folder / "model.onnx"
    path.write_bytes(made.SerializeToString())
    return path


def test_external_data_is_read_from_the_models_folder_only(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "data.bin").write_bytes(np.arange(4, dtype=np.float32).tobytes())
    (tmp_path / "secret.bin").write_bytes(bytes(16))
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    assert load_onnx(external(folder, "data.bin"))(torch.zeros(4)).tolist() == [0, 1, 2, 3]
    for outside in ("../secret.bin", str(tmp_path / "secret.bin"), "link.bin", "a/../../secret.bin"):
        refuse(external(folder, outside), "ON906", "'w'", "folder")
    refuse(external(folder, "none.bin"), "ON906", "missing")
    refuse(external(folder, "data.bin", 64), "ON903", "needs 16 bytes")


def test_files_that_are_no_models(tmp_path):
    good = flattening(tmp_path).read_bytes()
    for name, data in (
        ("text", b"hello, this is text\n" * 9),
        ("empty", b""),
        ("cut", good[: len(good) // 2]),
    ):
        path = tmp_path / f"{name}.onnx"
        path.write_bytes(data)
        with pytest.raises(OpenNeutronError) as caught:
            load_onnx(path)
        assert caught.value.diagnostic.code in ("ON902", "ON903"), name
    refuse(tmp_path / "none.onnx", "ON602")


def test_what_is_declared_must_be_there(tmp_path):
    made = model([helper.make_node("Add", ["x", "w"], ["y"])], [value("x", [4])], [value("y", [4])])
    weight = numpy_helper.from_array(np.zeros(4, np.float32), "w")
    del weight.dims[:]
    weight.dims.append(1 << 40)
    made.graph.initializer.append(weight)
    path = tmp_path / "model.onnx"
    path.write_bytes(made.SerializeToString())
    refuse(path, "ON903", "'w'", "has 16")


def test_a_result_that_no_memory_holds(tmp_path):
    node = helper.make_node("ConstantOfShape", ["s"], ["c"], name="fill")
    made = model(
        [node, helper.make_node("Add", ["x", "c"], ["y"])],
        [value("x", [1])],
        [value("y", None)],
        {"s": np.array([1 << 20, 1 << 20])},
    )
    refuse(save(made, tmp_path), "ON907", "fill")


def test_operators_that_are_not_read(tmp_path):
    def one(op, opset=21, domain="", attributes=None, x=("x",)):
        node = helper.make_node(op, list(x), ["y"], name="it", domain=domain, **(attributes or {}))
        made = model([node], [value("x", [1, 4])], [value("y", None)], opset=opset)
        if domain:
            made.opset_import.append(helper.make_opsetid(domain, 1))
        return save(made, tmp_path)

    refuse(one("Multinomial", attributes={"sample_size": 1}), "ON904", "'it'", "Multinomial", "opset 21")
    refuse(one("Relux", domain="my.domain"), "ON904", "my.domain.Relux", "Did you mean 'Relu'")
    refuse(one("Relux"), "ON903", "Relux", "Did you mean 'Relu'")
    refuse(one("Add", opset=6, x=("x", "x")), "ON904", "opset 6", "7 to")
    assert load_onnx(one("Relu", opset=6)).input_names == ("x",)  # which has been the same since
    bad = one("DepthToSpace", attributes={"blocksize": 2, "mode": "ABC"})
    refuse(bad, "ON904", "'it'")


def test_weights_of_four_bits(tmp_path):
    """Packed two to a byte; with scales along an axis they are int8 weights; inputs are refused."""
    values = np.array([[-8, 7, 3], [0, -1, 5]], np.int8)
    weight = helper.make_tensor("w", TensorProto.INT4, (2, 3), values.reshape(-1))
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["r"], axis=0),
        helper.make_node("Gemm", ["x", "r"], ["y"], transB=1),
    ]
    scales = np.array([0.5, 0.25], np.float32)
    made = model(nodes, [value("x", [1, 3])], [value("y", None)], {"s": scales})
    made.graph.initializer.append(weight)
    module, x = load_onnx(save(made, tmp_path)), torch.tensor([[1.0, 2.0, -3.0]])
    torch.testing.assert_close(module(x), x @ torch.from_numpy(values * scales[:, None]).T)
    weight.dims[1] = 9
    made.graph.initializer[-1].CopyFrom(weight)
    refuse(save(made, tmp_path), "ON903", "'w'", "declares")
    cast = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)
    given = model([cast], [value("x", [4], TensorProto.INT4)], [value("y", None)])
    refuse(save(given, tmp_path), "ON904", "'x'", "int4")


def test_a_long_chain_is_refused_quickly(tmp_path):
    nodes = [helper.make_node("Relu", [f"v{i}"], [f"v{i + 1}"]) for i in range(10_000)]
    path = save(model(nodes, [value("v0", [4])], [value("v10000", [4])]), tmp_path)
    started = time.process_time()
    refuse(path, "ON907", "5000")
    assert time.process_time() - started < 30


def test_on_the_command_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = flattening(tmp_path, ("batch", 3, "height", "width"))
    assert main(["compile", str(path)]) == 1
    assert "ON905" in capsys.readouterr().err and not list(tmp_path.glob("*.pte"))
    assert main(["compile", "cifarnet", "--shape", "1,3,32,32"]) == 2
    assert "no effect" in capsys.readouterr().err
    assert main(["convert", str(path), "--shape", "1,3,4,4", "--float", "-o", "out.tflite"]) == 0
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path="out.tflite")
    interpreter.allocate_tensors()
    (given,), (made,) = interpreter.get_input_details(), interpreter.get_output_details()
    assert (given["name"], made["name"]) == ("x", "y")
    x = np.random.default_rng(0).standard_normal((1, 3, 4, 4)).astype(np.float32)
    interpreter.set_tensor(given["index"], x)
    interpreter.invoke()
    wanted = run_onnxruntime(path, [x])[0]
    np.testing.assert_allclose(interpreter.get_tensor(made["index"]), wanted, rtol=1e-4, atol=1e-5)


def test_onnx_is_imported_only_for_onnx_files():
    import subprocess
    import sys

    code = "import sys; import openneutron.cli, openneutron.commands; print('onnx' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    assert onnx.__name__ == "onnx"


def test_names_of_another_code_page_are_read(tmp_path):
    """Protobuf gives a name that is no UTF-8 as bytes; it is a name all the same."""
    nodes = [
        helper.make_node("Relu", ["x"], ["nnnn"], name="aaaa", doc_string="dddd"),
        helper.make_node("Neg", ["nnnn"], ["y"]),
    ]
    raw = model(nodes, [value("x", [1, 2])], [value("y", [1, 2])]).SerializeToString()
    for word in (b"aaaa", b"dddd", b"nnnn"):
        raw = raw.replace(word, "\u4e2d\u6587".encode("gbk"))
    (tmp_path / "model.onnx").write_bytes(raw)
    loaded = load_onnx(tmp_path / "model.onnx")
    assert loaded(torch.tensor([[1.0, -1.0]])).tolist() == [[-1.0, 0.0]]


def test_a_size_beyond_all_memory_beside_a_zero_is_refused(tmp_path):
    made = model([helper.make_node("Add", ["x", "w"], ["y"])], [value("x", [1])], [value("y", None)])
    made.graph.initializer.append(
        TensorProto(name="w", data_type=1, dims=[0, 1 << 40, 1 << 40], raw_data=b"")
    )
    refuse(save(made, tmp_path), "ON903", "it has the shape")
    made.graph.initializer[0].dims[:] = [0] + [1] * 70
    refuse(save(made, tmp_path), "ON903", "it has the shape")

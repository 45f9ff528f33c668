"""Projects of other build systems, compiled with stand-ins for what NXP and Zephyr ship."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from openneutron.cli import main
from openneutron.firmware.build import runtime_folder
from openneutron.firmware.cores import CORES
from openneutron.firmware.export_sdk import export_mcux, export_zephyr
from openneutron.options import CompileOptions
from openneutron.package.pte import inspect_program
from openneutron.pipeline import compile_model
from tests.firmware.whole import build_measured, compiled

pytestmark = pytest.mark.firmware
STAND_INS = Path(__file__).with_name("stand_ins")
HEADERS = {
    "app.h": "void BOARD_InitHardware(void);\n",
    "fsl_debug_console.h": "int PRINTF(const char *format, ...);\n",
    "NeutronDriver.h": "int neutronInit(void);\nint neutronDeinit(void);\n",
}
ZEPHYR_HEADERS = {
    "zephyr/kernel.h": "#include <stdint.h>\nuint32_t k_cycle_get_32(void);\n"
    "uint32_t k_cyc_to_us_floor32(uint32_t cycles);\n",
    "zephyr/sys/printk.h": "void printk(const char *format, ...);\n",
}
_NAMES = re.compile(rb"\b(?:aten|quantized_decomposed|cortex_m|dim_order_ops)::\w+(?:\.\w+)?")


@pytest.fixture
def sdk(tmp_path) -> Path:
    """What a project of the MCUXpresso SDK includes of it."""
    root = tmp_path / "sdk"
    (root / "cmake/extension").mkdir(parents=True)
    shutil.copy(STAND_INS / "mcux.cmake", root / "cmake/extension/mcux.cmake")
    (root / "CMakeLists.txt").touch()
    (root / "middleware/eiq/neutron/driver/include").mkdir(parents=True)
    for name, text in HEADERS.items():
        (root / "middleware/eiq" / name).write_text(text)
    return root


def build(folder: Path, out: Path, **options: object) -> list[Path]:
    """Configure and build with the cross compiler; the objects."""
    cmake = shutil.which("cmake", path=str(Path(sys.executable).parent)) or shutil.which("cmake")
    if cmake is None:
        pytest.skip("cmake is not installed")
    flags = " ".join(CORES["cortex-m33"].flags)
    given = {
        "CMAKE_TOOLCHAIN_FILE": runtime_folder() / "firmware/arm-none-eabi.cmake",
        "CMAKE_C_FLAGS": flags,
        "CMAKE_CXX_FLAGS": flags,
        "CMAKE_ASM_FLAGS": flags,
        **options,
    }
    configure = [cmake, "-S", folder, "-B", out, *(f"-D{k}={v}" for k, v in given.items())]
    done = subprocess.run([str(c) for c in configure], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-1500:]
    done = subprocess.run([cmake, "--build", str(out), "-j2"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2500:] + done.stderr[-2500:]
    return list(out.rglob("*.o")) + list(out.rglob("*.obj"))


def registered(objects: list[Path]) -> set[str]:
    """The operators that the registrations among the objects name."""
    mine = [o for o in objects if "RegisterCodegenUnboxedKernelsEverything" in o.name]
    return {name.decode() for o in mine for name in _NAMES.findall(o.read_bytes()) if b"." in name}


def test_mcux_of_nxps_converter(sources, sdk, tmp_path, monkeypatch, capsys):
    import importlib.util

    spec = importlib.util.spec_from_file_location("stand_in", STAND_INS.parents[1] / "converter/sdk.py")
    assert spec is not None and spec.loader is not None
    stand_in = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(stand_in)
    (tmp_path / "python").mkdir()
    monkeypatch.setenv("PYTHONPATH", str(stand_in.install(tmp_path / "python")))
    inputs = (torch.randn(1, 3, 8, 8),)
    options = CompileOptions(converter="eiq")
    made = compile_model(torch.nn.Conv2d(3, 4, 3).eval(), inputs, calibration=[inputs], options=options)
    (tmp_path / "conv.pte").write_bytes(made.pte)
    monkeypatch.delenv("PYTHONPATH")
    where = ["--export", str(tmp_path / "out"), "--format", "mcux", "--json"]
    assert main(["firmware", str(tmp_path / "conv.pte"), *where]) == 0
    pools = json.loads(capsys.readouterr().out)["pools"]
    assert pools["temporary"] == 96 * 1024  # NXP's least, far above the stand-in's 4 KiB
    include = sources.include  # NXP's SDK has ExecuTorch's headers
    for folder in ("runtime/core/portable_type/c10",):
        assert (include / "executorch" / folder).is_dir()
    flags = " ".join(CORES["cortex-m33"].flags)
    extra = (f"{flags} -DC10_USING_CUSTOM_GENERATED_MACROS -I{include} -I{sources.flatbuffers} "
             f"-I{include}/executorch/runtime/core/portable_type/c10 -I{sources.generated}")  # fmt: skip
    objects = build(tmp_path / "out", tmp_path / "b", SdkRootDirPath=sdk, CMAKE_CXX_FLAGS=extra)
    info = inspect_program(made.pte)
    assert registered(objects) == set(info.methods["forward"].operators)
    built = {o.name.split(".")[0] for o in objects}
    assert {"adapt_quantize", "quantize"} <= built  # our CPU kernels sit beside NXP's delegate too
    (program,) = [o for o in objects if o.name.startswith("main.cpp")]
    assert made.pte in program.read_bytes()
    symbols = subprocess.run(["arm-none-eabi-nm", program], capture_output=True, text=True).stdout
    assert "U neutronInit" in symbols and "U neutronDeinit" in symbols
    text = (tmp_path / "out/reconfig.cmake").read_text()
    assert all(name in text for name in ("libexecutorch.a", "libNeutronDriver.a", "libNeutronFirmware.a"))
    names = {f.name for f in (tmp_path / "out").iterdir()}
    assert {
        "CMakeLists.txt",
        "main.cpp",
        "model_pte.h",
        "neutron_pools.h",
        "example.yml",
        "readme.md",
    } <= names


@pytest.mark.slow  # an image is built and measured under QEMU
def test_mcux_and_zephyr_of_ours(sources, sdk, tmp_path):
    firmware = build_measured(compiled("middle", "imxrt700"), tmp_path / "image", sources)
    wanted = {op for op in firmware.program.operators if not op.startswith("executorch_prim::")}
    export_mcux(firmware, tmp_path / "mcux", sources)
    header = (tmp_path / "image/neutron_pools.h").read_text()
    assert (tmp_path / "mcux/neutron_pools.h").read_text() == header  # what QEMU needed
    trees = {"EXECUTORCH_SOURCE": sources.executorch, "CMSIS_NN_SOURCE": sources.cmsis_nn}
    eiq = f"{' '.join(CORES['cortex-m33'].flags)} -I{sdk}/middleware/eiq"
    objects = build(tmp_path / "mcux", tmp_path / "b", SdkRootDirPath=sdk, CMAKE_CXX_FLAGS=eiq, **trees)
    assert registered(objects) == wanted
    assert any(o.name.startswith("neutron_backend") for o in objects)

    export_zephyr(firmware, tmp_path / "zephyr", sources)
    assert (tmp_path / "zephyr/app/src/neutron_pools.h").read_text() == header
    base = tmp_path / "zephyr_base"
    base.mkdir()
    shutil.copy(STAND_INS / "ZephyrConfig.cmake", base)
    for name, text in ZEPHYR_HEADERS.items():
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        (base / name).write_text(text)
    flags = " ".join(CORES["cortex-m33"].flags)
    options = {
        "Zephyr_DIR": base,
        "CMAKE_CXX_FLAGS": f"{flags} -I{base} -I{sources.flatbuffers} -I{sources.generated}",
        "STAND_IN_EXECUTORCH": sources.include / "executorch",
        "CMSIS_NN_SOURCE": sources.cmsis_nn,
    }
    objects = build(tmp_path / "zephyr/app", tmp_path / "z", **options)
    assert registered(objects) == wanted
    assert any(o.name.startswith("neutron_backend") for o in objects)
    (sample,) = [o for o in objects if o.name.startswith("sample.S")]
    for name in ("inputs", "outputs"):  # what the application computes, and what must come of it
        assert (tmp_path / f"zephyr/app/src/sample_{name}.bin").read_bytes() in sample.read_bytes()
    for file in (tmp_path / "zephyr").rglob("*"):
        assert not file.is_symlink()


def test_formats_without_sense(tmp_path):
    assert main(["firmware", "x.pte", "--format", "mcux"]) == 2
    assert main(["firmware", "x.pte", "--export", "y", "--format", "make"]) == 2

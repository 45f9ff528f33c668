"""The pages of the examples, made of the figures that runs kept: each README's table, and the gallery."""

from __future__ import annotations

import re
from pathlib import Path

from examples.apps.frame import APPS, PICTURES, ROOT, Figures, read_figures

GALLERY = ROOT / "docs/applications.md"
BLOCK = re.compile(r"(<!-- figures -->\n).*?(<!-- end of figures -->)", re.S)
HEAD = """# Applications

One example for every kind of thing the NPU is for, each from a network to an answer that a person can check,
on the simulator and in an application of its own on an emulated Cortex-M33. After `make setup`:

```console
$ make app NAME=anomaly
```

Pictures and figures are written by `make app-pages`. Times and shares are estimates for i.MX RT700; accuracy
is of samples that neither trained nor calibrated. The emulated chip is the application under QEMU, with the
open converter's firmware, not NXP's NPU.

"""
OVERVIEW = """| | figure | float | int8 | emulated chip | ms | SRAM, KiB | on the CPU | minutes |
|---|---|---|---|---|---|---|---|---|
"""
BELOW = """
Float and int8 (on the simulator) are the figure of each task, which is below in full. The time is of one
run of each of an application's programs, the SRAM that of the one that needs most, as they use it one after
the other; the CPU's share is of the time. Minutes are of one core, from the start to the picture.

"""


def _value(number: float | str | None, unit: str) -> str:
    """A figure, or the words in its place."""
    if number is None or isinstance(number, str):
        return number or "not run here"
    return f"{100 * number:.1f} {unit}" if unit == "%" else f"{number:.4f} {unit}".strip()


def rows(figures: Figures) -> list[tuple[str, str]]:
    """What is known, as a table of two columns."""
    exact, int8, chip = (_value(v, figures.unit) for v in (figures.float, figures.int8, figures.chip))
    found = [(figures.task, f"float {exact}, int8 {int8}, on the emulated chip {chip}")]
    for cost in figures.costs:
        cpu = (
            f"; on the CPU: {', '.join(cost.cpu)}" if cost.cpu else "; on the CPU only the ends are converted"
        )
        sizes = f"{cost.sram / 1024:.0f} KiB of SRAM, {cost.flash / 1024:.0f} KiB of flash"
        time = f"{cost.ms:.2f} ms (estimated), {cost.npu_share:.0%} of them on the NPU"
        found.append((f"{cost.name}, one inference", f"{time}; {sizes}{cpu}"))
    if figures.chip_note:
        found.append(("the application on the emulated chip", figures.chip_note))
    return [*found, *figures.more.items()]


def overview(all_figures: dict[str, Figures]) -> str:
    """All examples in one table, in Markdown, and why int8 is behind where it is."""
    text, reasons = OVERVIEW, []
    for name, figures in all_figures.items():
        ms = sum(cost.ms for cost in figures.costs)
        cpu = sum(cost.ms * (1 - cost.npu_share) for cost in figures.costs) / ms
        sram = max(cost.sram for cost in figures.costs) / 1024
        title = title_of(name)[0]
        chip = "as int8" if isinstance(figures.chip, str) else figures.chip  # words that say the same
        values = [_value(v, figures.unit) for v in (figures.float, figures.int8, chip)]
        minutes = "" if figures.minutes is None else f"{figures.minutes:.1f}"
        task = figures.task.partition(",")[0]
        cells = [
            f"[{name}](#{anchor(title)})",
            task,
            *values,
            f"{ms:.2f}",
            f"{sram:.0f}",
            f"{cpu:.0%}",
            minutes,
        ]
        text += f"| {' | '.join(cells)} |\n"
        if figures.behind:
            reasons.append(f"{name}: {figures.behind}\n\n")
    return text + BELOW + "".join(reasons)


def anchor(title: str) -> str:
    """Where a headline's link leads."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def table(figures: Figures) -> str:
    """The rows in Markdown."""
    return "| | |\n|---|---|\n" + "".join(f"| {a} | {b} |\n" for a, b in rows(figures))


def print_figures(name: str, figures: Figures, seconds: float) -> None:
    """The rows on the terminal."""
    print(f"\n{name}: {seconds / 60:.1f} minutes")
    for what, value in rows(figures):
        print(f"  {what}: {value}")


def title_of(name: str) -> tuple[str, str]:
    """The first line of an example's README, and its first paragraph."""
    text = (APPS / name / "README.md").read_text()
    head, _, rest = text.partition("\n\n")
    return head.lstrip("# "), rest.split("\n\n")[0].replace("\n", " ")


def write_pages(names: list[str]) -> None:
    """Write the tables of all READMEs and the gallery."""
    kept = {n: read_figures(f) for n in names if (f := APPS / n / "figures.json").exists()}
    page = HEAD + overview(kept)
    for name, figures in kept.items():
        readme = APPS / name / "README.md"
        readme.write_text(BLOCK.sub(lambda m, f=figures: m[1] + table(f) + m[2], readme.read_text()))
        title, about = title_of(name)
        picture = Path(PICTURES.name) / f"{name}.png"
        code = f"the code is in [examples/apps/{name}](../examples/apps/{name}/README.md)"
        page += (f"## {title}\n\n{about}\n\n![{title}](images/{picture.as_posix()})\n\n{table(figures)}\n"
                 f"`make app NAME={name}`; {code}.\n\n")  # fmt: skip
    GALLERY.write_text(page.rstrip() + "\n")
    print(f"written: {GALLERY.relative_to(ROOT)}, and the tables of the READMEs")

"""Reading a TOML file that a user wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from openneutron.compat import tomllib
from openneutron.diagnostics import fail


def load_toml(path: Path, code: str) -> dict[str, Any]:
    """Its tables; whatever is wrong with the file is a diagnostic."""
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        fail(code, str(path), "there is no such file", "Check the path.")
    except (OSError, UnicodeDecodeError) as error:
        fail(code, str(path), f"cannot be read: {error}", "Check that it is a text file and may be read.")
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        fail(code, str(path), f"is not TOML: {error}", "The message names the line.")

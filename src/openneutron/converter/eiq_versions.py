"""Which `eiq_neutron_sdk` an ExecuTorch release was made for, and which one is installed."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from openneutron import __version__

DISTRIBUTION = "eiq_neutron_sdk"

# ExecuTorch's release: the SDK its NXP backend asks for (that release's backends/nxp/requirements-eiq.txt).
# Before 1.2 the converter was a package named after the quarter, with another interface.
MADE_FOR = {"1.2": "3.0.0", "1.3": "3.1.1", "1.4": "3.1.3", "1.5": "3.2.0"}
WANTED = MADE_FOR["1.5"]
# What `python -m openneutron.sdk` answers: whoever asks for the version reads who it is.
_STAND_IN = "openneutron"
STAND_IN_VERSION = f"{WANTED}+{_STAND_IN}.{__version__}"
# The MCUXpresso SDK with the Neutron driver and firmware for it, as far as ExecuTorch's manual says.
FIRMWARE = {"3.2.0": "MCUXpresso SDK 26.06"}


def installed_version() -> str | None:
    """The version of the SDK that is installed, or None."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return None


def is_stand_in(version: str) -> bool:
    """Whether a version is that of OpenNeutron's own answer under NXP's name."""
    return _STAND_IN in version.partition("+")[2]


def fit(version: str) -> str | None:
    """What is to be said of an installed version that this ExecuTorch was not made for; None if it was."""
    if is_stand_in(version):
        return "it is OpenNeutron's own stand-in: what it makes does not run on NXP silicon"
    if version == WANTED:
        return None
    releases = ", ".join(release for release, made_for in MADE_FOR.items() if made_for == version)
    made = (
        f"it belongs to ExecuTorch {releases}"
        if releases
        else "no release of ExecuTorch known here asks for it"
    )
    return f"ExecuTorch {max(MADE_FOR)} asks for {WANTED}; {made}"

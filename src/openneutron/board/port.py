"""The line to a board: a serial port or one of pyserial's URLs, or a socket, which needs no pyserial."""

from __future__ import annotations

import os
import socket
from typing import Any, Protocol
from urllib.parse import urlsplit

from openneutron.diagnostics import fail

_CONNECT_SECONDS = 5.0


class LineError(Exception):
    """The line cannot be read or written any more."""


class Port(Protocol):
    """What a client wants of a line."""

    def read(self, seconds: float) -> bytes:
        """What comes within the time: at least a byte, or nothing."""

    def write(self, data: bytes, seconds: float) -> None:
        """Send all of it within the time."""

    def close(self) -> None:
        """Let it go."""


class SocketPort:
    """A line over TCP, or a local socket."""

    def __init__(self, connection: socket.socket):
        self._socket = connection

    def read(self, seconds: float) -> bytes:
        """What comes within the time."""
        self._socket.settimeout(max(seconds, 0.001))
        try:
            data = self._socket.recv(65536)
        except TimeoutError:
            return b""
        except OSError as error:
            raise LineError(error.strerror or str(error)) from error
        if not data:
            raise LineError("the other side closed the connection")
        return data

    def write(self, data: bytes, seconds: float) -> None:
        """Send all of it."""
        self._socket.settimeout(max(seconds, 0.001))
        try:
            self._socket.sendall(data)
        except TimeoutError as error:
            raise LineError(f"it took nothing for {seconds:.0f} s") from error
        except OSError as error:
            raise LineError(error.strerror or str(error)) from error

    def close(self) -> None:
        """Let it go."""
        self._socket.close()


class SerialPort:
    """A line of pyserial's."""

    def __init__(self, line: Any):
        self._line = line

    def read(self, seconds: float) -> bytes:
        """What comes within the time."""
        try:
            self._line.timeout = max(seconds, 0.001)
            return bytes(self._line.read(max(1, self._line.in_waiting)))
        except (OSError, ValueError, TypeError, AttributeError) as error:  # pyserial's own is an OSError
            raise LineError(_reason(error)) from error

    def write(self, data: bytes, seconds: float) -> None:
        """Send all of it."""
        try:
            self._line.write_timeout = max(seconds, 0.001)
            written = self._line.write(data)
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise LineError(_reason(error)) from error
        if written is not None and written != len(data):
            raise LineError(f"it took {written} of {len(data)} bytes")

    def close(self) -> None:
        """Let it go."""
        try:
            self._line.close()
        except (OSError, ValueError, TypeError, AttributeError):
            return  # a line that has disappeared is closed


def open_port(name: str, baud: int) -> Port:
    """The line of that name; one that cannot be opened is a diagnostic."""
    if name.startswith("socket://"):
        return _open_socket(name)
    try:
        import serial
    except ImportError:
        fail("ON721", name, "serial ports are opened with the package pyserial, which is not installed",
             "pip install 'openneutron[board]'")  # fmt: skip
    try:
        return SerialPort(serial.serial_for_url(name, baudrate=baud, timeout=0.1, write_timeout=5))
    except (OSError, ValueError, TypeError, AttributeError, ImportError) as error:
        fail("ON720", name, f"cannot be opened: {_reason(error)}", _hint(name))


def _open_socket(name: str) -> SocketPort:
    try:
        parts = urlsplit(name)
        host, number = parts.hostname, parts.port
    except ValueError:
        host = number = None
    if not host or not number:
        fail("ON720", name, "is no address of a socket", "Write it as socket://localhost:5555.")
    try:
        return SocketPort(socket.create_connection((host, number), timeout=_CONNECT_SECONDS))
    except (OSError, UnicodeError) as error:
        fail("ON720", name, f"cannot be opened: {_reason(error)}", "Is something listening there?")


def _hint(name: str) -> str:
    ports = _ports()
    listing = f"Serial ports here: {', '.join(ports)}." if ports else "No serial port is plugged in here."
    return f"{listing} Is it used by another program, or may you not open it (group dialout)?"


def _ports() -> list[str]:
    try:
        from serial.tools.list_ports import comports

        return sorted(str(port.device) for port in comports())
    except Exception:  # a list for a hint: whatever fails, there is none
        return []


def _reason(error: BaseException) -> str:
    number = getattr(error, "errno", None)  # pyserial repeats the name and the number in its text
    message = os.strerror(number) if isinstance(number, int) and number > 0 else ""
    text = message or getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(text).splitlines()[0]

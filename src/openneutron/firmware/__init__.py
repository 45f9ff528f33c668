"""Firmware for a Cortex-M33: built of the C runtime and a program, run under QEMU, compared with the host."""

/* Where a program is received: as much as the linker script calls flash, written during an upload only. */
    .section .program, "aw", %nobits
    .balign 128
    .global firmware_upload
firmware_upload:
    .space FIRMWARE_UPLOAD_BYTES

#!/usr/bin/env bash
# try-fresh.sh [FOLDER]: a fresh Debian 13 (Python 3.13, gcc 14) in FOLDER, a clone of this checkout in it, then
# `make demo` and `make test-fast` there as an ordinary user without sudo. Prints what it saw; exit 1 if one failed.
#
# Needs root (debootstrap, chroot), debootstrap, and about 15 GB: PyPI's ordinary torch brings CUDA along. A FOLDER
# that is there already is used again. SUITE=bookworm tries Python 3.11. TARGETS="demo" does less.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
folder=${1:-$(mktemp -d)/fresh}
suite=${SUITE:-trixie}
targets=${TARGETS:-demo test-fast}
[ "$(id -u)" = 0 ] || { echo "error: this needs root, for debootstrap and chroot" >&2; exit 2; }
command -v debootstrap >/dev/null || { echo "error: debootstrap not found (Debian: apt-get install debootstrap)" >&2; exit 2; }

if [ ! -x "$folder/usr/bin/python3" ]; then
  debootstrap --variant=minbase --include=ca-certificates,python3,python3-venv,git,make,gcc,g++ "$suite" "$folder" >/dev/null
fi
# What this machine knows of certificates, names and package indexes.
cp /etc/resolv.conf "$folder/etc/resolv.conf"
cp /etc/ssl/certs/ca-certificates.crt "$folder/etc/ssl/certs/ca-certificates.crt"
chroot "$folder" id user >/dev/null 2>&1 || chroot "$folder" useradd --create-home --shell /bin/bash user
for place in proc dev/shm dev/pts; do mkdir -p "$folder/$place"; done
mount -t proc proc "$folder/proc"
trap 'umount "$folder/dev/pts" "$folder/dev/shm" "$folder/proc" 2>/dev/null || true' EXIT
mount -t tmpfs -o size=4G tmpfs "$folder/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$folder/dev/pts" # terminals, for a test of colours
ln -sf pts/ptmx "$folder/dev/ptmx"
for device in null zero random urandom; do [ -e "$folder/dev/$device" ] || cp -a "/dev/$device" "$folder/dev/$device"; done

rm -rf "$folder/home/user/openneutron"
git clone --quiet --no-hardlinks "$here" "$folder/home/user/openneutron"
chroot "$folder" chown -R user:user /home/user

as_user() { # without this machine's environment: what a newcomer has
  chroot "$folder" env -i HOME=/home/user USER=user TERM=dumb LANG=C.UTF-8 PATH=/usr/bin:/bin \
    PIP_DEFAULT_TIMEOUT=180 su user -s /bin/bash -c "cd ~/openneutron && $1"
}

echo "== $(. "$folder/etc/os-release"; echo "$PRETTY_NAME"), $(as_user 'python3 -V'), $(as_user 'gcc -dumpfullversion' | sed 's/^/gcc /')"
echo "== commit $(git -C "$here" rev-parse --short HEAD), as $(as_user 'id -un'), sudo: $(as_user 'command -v sudo || echo none')"
failed=0
for target in $targets; do
  began=$(date +%s)
  if as_user "make INSTALL=no $target" >"$folder/home/user/$target.log" 2>&1; then verdict=ok; else verdict=FAILED failed=1; fi
  tail -n 25 "$folder/home/user/$target.log"
  echo "== make $target: $verdict, $(($(date +%s) - began)) s"
done
exit "$failed"

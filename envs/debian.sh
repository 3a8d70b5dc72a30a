#!/usr/bin/env bash
# Install the missing ones of the Debian packages in debian.txt, beside this script.
set -euo pipefail

mapfile -t packages < <(grep -v '^#' "$(dirname "$0")/debian.txt")
missing=()
for package in "${packages[@]}"; do
    dpkg-query --show --showformat '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

if ! command -v apt-get >/dev/null; then
    echo "envs/debian.sh: no apt-get here. Install what matches these Debian packages: ${missing[*]}" >&2
    exit 2
fi
as_root=()
[ "$(id -u)" -eq 0 ] || as_root=(sudo)
apt_get=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o Acquire::Retries=3)
"${apt_get[@]}" update
"${apt_get[@]}" install --yes --no-install-recommends "${missing[@]}"

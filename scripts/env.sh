#!/usr/bin/env bash
# Make the virtual environment $VENV (default .venv) hold what constraints.txt and pyproject.toml say and this checkout.
# Nothing is done when it already does; a folder shared by several checkouts only has the package itself pointed anew.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
venv=${VENV:-$root/.venv}
python=${PYTHON:-python3}
wanted=$(cat "$root/pyproject.toml" "$root/constraints.txt" | sha256sum | cut -c1-16)
stamp=$venv/.spectral-conditioning

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
  echo "error: $python is $("$python" --version 2>&1); Python 3.11 or newer is needed (set PYTHON=…)" >&2
  exit 1
}
mkdir -p "$(dirname "$venv")"
exec 9>"$venv.lock"
flock 9
have=$(cat "$stamp" 2>/dev/null || true)
[ "$have" = "$wanted $root" ] && exit 0
if [ "${have%% *}" != "$wanted" ]; then
  echo "Setting up $venv (PyTorch is large: the first time takes some minutes)"
  [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet -c "$root/constraints.txt" -e "$root[dev]"
else
  "$venv/bin/python" -m pip install --quiet --no-deps -e "$root"
fi
echo "$wanted $root" >"$stamp"

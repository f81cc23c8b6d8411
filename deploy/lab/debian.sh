# Sourced with LAB, PACKAGES, PROGRAMS and ELSEWHERE set: Debian's packages for a real lab, where one of the programs is
# missing. In CI they are installed; outside CI a person is asked first. A function `prepare` is called before apt runs.
# No package may start a service of its own: a policy-rc.d that forbids it stands while apt runs.
missing=()
for program in $PROGRAMS; do
  PATH="$PATH:/usr/sbin:/sbin" command -v "$program" >/dev/null || missing+=("$program")
done
if [ ${#missing[@]} -eq 0 ]; then exit 0; fi
how="apt-get install --no-install-recommends $PACKAGES"
if [ "$(id -u)" != 0 ]; then
  echo "real $LAB lab: ${missing[*]} missing; it needs root and: $how" >&2
  exit 0
fi
if ! command -v apt-get >/dev/null; then
  echo "real $LAB lab: ${missing[*]} missing, and this is no Debian; $ELSEWHERE" >&2
  exit 0
fi
if [ "${CI:-}" != true ]; then
  if [ ! -t 0 ]; then
    echo "real $LAB lab: ${missing[*]} missing; install them with: $how (or set CI=true)" >&2
    exit 0
  fi
  read -r -p "Install Debian's packages for the $LAB lab ($PACKAGES)? No service is started. [y/N] " answer
  case "$answer" in y | Y | yes) ;; *) exit 0 ;; esac
fi
policy=/usr/sbin/policy-rc.d
made=""
if [ ! -e "$policy" ]; then
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod 755 "$policy"
  made=yes
fi
trap '[ -z "$made" ] || rm -f "$policy"' EXIT
if declare -F prepare >/dev/null; then prepare; fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq </dev/null
# shellcheck disable=SC2086  # a list of packages
apt-get install -y -qq --no-install-recommends $PACKAGES </dev/null

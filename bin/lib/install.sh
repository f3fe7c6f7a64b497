# shellcheck shell=bash
# Makes a machine and a checkout ready to run Torpor: system packages, npm packages, build. Sourced by bin/quickstart
# and bin/test, after `root` is set to the checkout. Every function looks first and acts only when something is missing.
: "${root:?the checkout}"

# shellcheck source=bin/lib/say.sh
source "$root/bin/lib/say.sh"
# shellcheck source=bin/lib/apt-sources.sh
source "$root/bin/lib/apt-sources.sh"
# shellcheck source=bin/lib/versions.sh
source "$root/bin/lib/versions.sh"

# Administrators' tools are not on everybody's PATH.
export PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"

# as_root COMMAND...: as it is for root, through sudo for others, with this PATH, Torpor's settings and nothing else of
# the environment. Settings are passed by name: values may be secret, and arguments are everybody's to see.
as_root() {
  if ((EUID == 0)); then
    "$@"
  else
    local settings
    settings="$({ compgen -e -X '!TORPOR_*' || true; } | paste -sd , -)" # compgen fails where there is none
    sudo ${settings:+"--preserve-env=$settings"} -- env "PATH=$PATH" "$@"
  fi
}

have() { command -v "$1" >/dev/null 2>&1; }

# Debian and Ubuntu are installed on; elsewhere we say what to install.
is_debian_like() {
  [[ -r /etc/os-release ]] && have apt-get || return 1
  local ids
  ids="$(source /etc/os-release && printf ' %s %s ' "${ID:-}" "${ID_LIKE:-}")"
  [[ "$ids" == *" debian "* || "$ids" == *" ubuntu "* ]]
}

codename() { (source /etc/os-release && printf '%s' "${VERSION_CODENAME:-}"); }

# Whether this user may become root, asked before any work is done. A password is asked for where somebody can give it.
check_root() {
  ((EUID != 0)) || return 0
  have sudo || fail "Root is needed, and there is no sudo." "Run this as root: sandboxes need namespaces, mounts and cgroups."
  sudo -n true 2>/dev/null && return 0
  if [[ -t 0 ]]; then
    note "root is needed to run sandboxes: sudo asks for a password"
    sudo -v && return 0
  fi
  fail "Root is needed, and sudo does not let $(id -un) have it." \
    "Run this as root, or as a user who may use sudo (on Debian: one of the group 'sudo'; where it asks for a password, in a terminal)."
}

check_machine() {
  check_root
  [[ "$(uname -s)" == Linux ]] || fail "Torpor runs on Linux; this is $(uname -s)." \
    "Use a Linux machine or virtual machine: gVisor intercepts Linux system calls."
  case "$(uname -m)" in
    x86_64 | aarch64 | arm64) ;;
    *) fail "This machine is $(uname -m); gVisor runs on x86_64 and arm64 only." ;;
  esac
  local node=''
  have node && node="$(node --version | node_major)"
  if [[ -z "$node" ]] || ((node < MINIMUM_NODE)); then
    fail "Node.js $MINIMUM_NODE or newer is needed; ${node:+this machine has $(node --version)}${node:-there is none}." \
      "The server, the host and the command line are written for it. Debian 12's own package is version 18: too old." \
      "Install a current release (from nodejs.org, your vendor's packages, or a version manager) and run this again."
  fi
  have npm || fail "npm is needed and is not on the PATH." "It comes with Node.js; Debian packages it apart, as 'npm'."
  local free_kib
  free_kib="$(df --output=avail -k -- "$root" | tail -n 1)"
  if ((free_kib < 2 * 1024 * 1024)); then
    fail "Only $((free_kib / 1024)) MiB are free at $root; 2 GiB are needed to build."
  fi
}

# Program, package and why, of what every machine needs.
readonly SYSTEM_PROGRAMS=(
  "mmdebstrap mmdebstrap builds the templates"
  "mkfs.erofs erofs-utils packs them for the runtime"
  "skopeo skopeo reads container images"
  "umoci umoci unpacks them"
  "bash-static bash-static runs commands in images without a shell"
  "ip iproute2 gives every sandbox its network"
  "nft nftables keeps the sandboxes apart"
  "mke2fs e2fsprogs caps every sandbox's disk"
  "losetup mount attaches those disks"
  "perl perl-base ends connections of sandboxes that sleep or are gone"
  "tar tar unpacks what sandboxes send"
  "openssl openssl signs the local certificate of 'torpor up --tls'"
)

runsc_is_good() {
  have runsc || return 1
  local text date
  text="$(runsc --version 2>/dev/null)" || return 1
  date="$(runsc_date <<<"$text")"
  [[ -z "$date" ]] || ((date >= MINIMUM_RUNSC)) # without a date it was built from source: trust whoever did
}

go_is_good() {
  have go || return 1
  local minor needed
  minor="$(GOTOOLCHAIN=local go version 2>/dev/null | go_minor)"
  needed="$(go_minor_needed <"$root/guest/go.mod")"
  [[ -n "$minor" ]] && ((minor >= needed))
}

# better-sqlite3 is compiled where no binary for this Node.js can be fetched.
has_compiler() { have make && have g++ && have python3; }

install_system_packages() {
  local packages=() newer=() reasons=() program package why entry
  for entry in "${SYSTEM_PROGRAMS[@]}"; do
    read -r program package why <<<"$entry"
    have "$program" && continue
    packages+=("$package") reasons+=("$program (package $package): $why")
  done
  runsc_is_good || { newer+=(runsc) && reasons+=("runsc of $MINIMUM_RUNSC or newer: gVisor, which runs the sandboxes"); }
  go_is_good || { newer+=(golang-go) && reasons+=("go 1.$(go_minor_needed <"$root/guest/go.mod") or newer: compiles the agent inside the sandboxes"); }
  if ! has_compiler && { [[ -n "${want_compiler:-}" ]] || ! sqlite_is_good; }; then
    packages+=(make g++ python3) reasons+=("make, g++, python3: compile the SQLite binding${want_compiler:+, and Go tests with the race detector}")
  fi
  if [[ -n "${want_postgresql:-}" ]] && ! postgresql_is_there; then
    packages+=(postgresql) reasons+=("postgresql: the store's tests run on it too")
  fi
  if [[ -n "${want_redis:-}" ]] && ! have redis-server && ! have redis-check-rdb; then
    packages+=(redis-tools) reasons+=("redis (package redis-tools, which starts no service): a test puts it to sleep in a sandbox")
  fi
  if ((${#reasons[@]} == 0)); then
    note "everything is there"
    return
  fi
  note "missing:"
  local reason
  for reason in "${reasons[@]}"; do note "  - $reason"; done
  is_debian_like || fail "This is not Debian or Ubuntu, so nothing is installed for you." \
    "Install what is listed above with your package manager (gVisor's installation guide has runsc)," \
    "then run this again: programs found on the PATH are used as they are."
  confirm "Install them with apt-get?"
  local names=() release
  release="$(codename)"
  ((${#newer[@]} > 0)) && add_backports "$release"
  names=("${packages[@]}")
  quietly "apt-get update" apt update || warn "some package lists could not be fetched; going on with those there are"
  if [[ " ${packages[*]} " == *" postgresql "* ]]; then
    # The tests start a server of their own: no system-wide one is wanted.
    as_root mkdir -p /etc/postgresql-common/createcluster.d
    printf 'create_main_cluster = false\n' | as_root tee /etc/postgresql-common/createcluster.d/torpor.conf >/dev/null
  fi
  if ((${#names[@]} > 0)); then
    quietly "apt-get install" apt install "${names[@]}" ||
      fail "The packages could not be installed: ${names[*]}." "Install them by hand and run this again."
  fi
  if ((${#newer[@]} > 0)); then
    quietly "apt-get install" apt install -t "$release-backports" "${newer[@]}" ||
      quietly "apt-get install" apt install "${newer[@]}" ||
      fail "These could not be installed: ${newer[*]}." "Install them by hand, put them on the PATH and run this again."
  fi
  hash -r
  runsc_is_good || fail "runsc is still too old: $(runsc --version 2>/dev/null | head -n 1)." \
    "$release has no newer one. Install a release of $MINIMUM_RUNSC or later by gVisor's installation guide, on the PATH before the package's."
  go_is_good || fail "go is still too old: $(go version 2>/dev/null)." \
    "Install Go 1.$(go_minor_needed <"$root/guest/go.mod") or later and put it on the PATH before the package's."
}

# apt update|install ARGS...
apt() {
  local verb="$1"
  shift
  local options=(-q -o DPkg::Lock::Timeout=120)
  [[ "$verb" == install ]] && options+=(-y --no-install-recommends)
  as_root env DEBIAN_FRONTEND=noninteractive apt-get "$verb" "${options[@]}" "$@"
}

# Adds the backports suite of the machine's own mirror, once, where the distribution has one.
add_backports() {
  local release="$1" line keyring=/usr/share/keyrings/debian-archive-keyring.gpg
  (source /etc/os-release && [[ "${ID:-}" == debian ]]) || return 0
  [[ -r "$keyring" ]] || keyring=''
  if ! line="$(machine_apt_entries "" | backports_line "$release" "$keyring")"; then
    fail "apt's configuration names no archive for $release, so there is no mirror to take newer packages from." \
      "Add one to /etc/apt/sources.list.d, or install runsc and go by hand, then run this again."
  fi
  [[ -n "$line" ]] || return 0
  note "adding the $release-backports suite of this machine's mirror: /etc/apt/sources.list.d/torpor-backports.list"
  printf '# Added by Torpor: newer runsc and golang-go. Remove it at will once they are installed.\n%s\n' "$line" |
    as_root tee /etc/apt/sources.list.d/torpor-backports.list >/dev/null
}

# Asks a person; goes ahead when told to by --yes, or when there is nobody to ask.
confirm() {
  [[ -n "${assume_yes:-}" || ! -t 0 || ! -t 1 ]] && return 0
  local answer
  read -r -p "  $1 [Y/n] " answer
  [[ "$answer" =~ ^([yY].*)?$ ]] || fail "Nothing was installed." "Install what is listed above by hand and run this again."
}

postgresql_is_there() {
  have initdb && return 0
  local found
  for found in /usr/lib/postgresql/*/bin/initdb; do [[ -x "$found" ]] && return 0; done
  return 1
}

sqlite_is_good() {
  (cd -- "$root" && node -e 'new (require("better-sqlite3"))(":memory:").close()') >/dev/null 2>&1
}

# The packages of package-lock.json, again only when it or Node.js has changed. Install scripts are not run: the one
# that matters, the SQLite binding, is built by compile_sqlite, and esbuild's only saves a start-up.
install_npm_packages() {
  local stamp="$root/node_modules/.torpor-installed" wanted
  wanted="$(cat -- "$root/package-lock.json" "$root"/*/package.json | sha256sum | cut -d ' ' -f 1) $(node --version) $(uname -m)"
  if [[ -f "$stamp" && "$(cat -- "$stamp")" == "$wanted" ]]; then
    note "unchanged"
    return
  fi
  rm -f -- "$stamp"
  (cd -- "$root" && quietly "npm ci" npm ci --ignore-scripts --no-audit --no-fund) ||
    fail "npm ci failed in $root." "Its output is above. Check that the npm registry can be reached, then run this again."
  printf '%s\n' "$wanted" >"$stamp"
}

# What takes the processor's time, side by side: the SQLite binding, the TypeScript and the guest agent.
build_all() {
  local jobs=() job failed=0
  compile_sqlite & jobs+=($!)
  build_typescript & jobs+=($!)
  build_guest & jobs+=($!)
  for job in "${jobs[@]}"; do wait "$job" || failed=1; done
  ((failed == 0)) || exit 1 # each has said what went wrong
}

# The binding of better-sqlite3 for this Node.js: fetched where there is one to fetch, else compiled, with the headers
# that came with this Node.js where there are some, since no download is needed then.
compile_sqlite() {
  if sqlite_is_good; then return; fi
  note "compiling the SQLite binding: a minute or two, once"
  local prefix options=(--foreground-scripts)
  prefix="$(node -p 'require("path").dirname(require("path").dirname(require("fs").realpathSync(process.execPath)))')"
  [[ -f "$prefix/include/node/node.h" ]] && options+=("--nodedir=$prefix")
  (cd -- "$root" && JOBS=max quietly "npm rebuild better-sqlite3" npm rebuild better-sqlite3 "${options[@]}") && sqlite_is_good && return
  fail "The SQLite binding (better-sqlite3) could not be built for Node.js $(node --version)." \
    "Its output is above. A C++ compiler, make and python3 are needed, and the headers of this Node.js."
}

# The compiler goes by its own record and misses no output that somebody has removed: without the record it builds anew.
forget_incomplete_builds() {
  local record package source
  for record in "$root"/*/dist/tsconfig.tsbuildinfo; do
    [[ -f "$record" ]] || continue
    package="${record%/dist/tsconfig.tsbuildinfo}"
    while IFS= read -r source; do
      [[ -f "$package/dist/$source.js" && -f "$package/dist/$source.d.ts" ]] && continue
      rm -f -- "$record"
      break
    done < <(cd -- "$package/src" && find . -name '*.ts' | sed 's/[.]ts$//')
  done
}

build_typescript() {
  forget_incomplete_builds
  (cd -- "$root" && node_modules/.bin/tsc -b) || fail "The build failed: tsc -b in $root." "The compiler's messages are above."
}

# One static binary; the same sources give the same bytes, since templates are named by its content.
build_guest() {
  mkdir -p -- "$root/guest/dist"
  (
    cd -- "$root/guest" || exit 1
    export CGO_ENABLED=0 GOTOOLCHAIN=local GOFLAGS='' GOPROXY=off GOCACHE="${GOCACHE:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/go-build}"
    go build -trimpath -buildvcs=false -ldflags '-s -w -buildid=' -o dist/torpor-guest.new ./cmd/torpor-guest || exit 1
    # Left alone when it is the same, so that a running instance's copy keeps its inode and nothing looks newer.
    if cmp -s dist/torpor-guest.new dist/torpor-guest; then rm -f dist/torpor-guest.new; else mv -f dist/torpor-guest.new dist/torpor-guest; fi
  ) || fail "The guest agent could not be built: go build in $root/guest."
}

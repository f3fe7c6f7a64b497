# shellcheck shell=bash
# What the scripts in bin/ say, and how long things took. Sourced.

if [[ -t 1 && -z "${NO_COLOR:-}" && "${TERM:-dumb}" != dumb ]]; then
  BOLD=$'\e[1m' DIM=$'\e[2m' RED=$'\e[31m' GREEN=$'\e[32m' YELLOW=$'\e[33m' RESET=$'\e[0m'
else
  BOLD='' DIM='' RED='' GREEN='' YELLOW='' RESET=''
fi

say() { printf '%s\n' "$*"; }
note() { printf '  %s\n' "$*"; }
warn() { printf '%s!%s %s\n' "$YELLOW" "$RESET" "$*" >&2; }

# Ends the script: what failed, and below it why and what to do.
fail() {
  printf '%serror:%s %s\n' "$RED" "$RESET" "$1" >&2
  shift
  local line
  for line in "$@"; do printf '  %s\n' "$line" >&2; done
  exit 1
}

now_ms() {
  local seconds="$EPOCHREALTIME"
  seconds="${seconds/[.,]/}"
  printf '%s' "$((seconds / 1000))"
}

# Milliseconds as "4.2 s" or "1 min 5 s".
spent() {
  local ms="$1"
  if ((ms < 60000)); then
    printf '%d.%d s' "$((ms / 1000))" "$((ms % 1000 / 100))"
  else
    printf '%d min %d s' "$((ms / 60000))" "$((ms % 60000 / 1000))"
  fi
}

# step NAME COMMAND...: runs it, its output going where it goes, and says how long it took.
step() {
  local name="$1" started
  shift
  started="$(now_ms)"
  say "${BOLD}==> ${name}${RESET}"
  "$@"
  say "    ${GREEN}done${RESET} ${DIM}$(spent "$(($(now_ms) - started))")${RESET}"
}

# quietly LABEL COMMAND...: keeps the output to itself unless the command fails.
quietly() {
  local label="$1" log code=0
  shift
  log="$(mktemp)"
  "$@" >"$log" 2>&1 || code=$?
  if ((code == 0)); then
    rm -f -- "$log"
    return 0
  fi
  warn "$label failed (exit $code): $*"
  # The cause is as often at the beginning as at the end.
  if (($(wc -l <"$log") > 40)); then
    { head -n 15 -- "$log" && echo ... && tail -n 25 -- "$log"; } | sed 's/^/    /' >&2
  else
    sed 's/^/    /' -- "$log" >&2
  fi
  rm -f -- "$log"
  return "$code"
}

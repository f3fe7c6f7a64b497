# shellcheck shell=bash
# Reads the machine's own apt configuration, both forms of it. Sourced.

# apt_entries FILE...: one line for each archive that is switched on, tab-separated:
#   uri  suite  components  signed-by  trusted
# "-" stands for what is not said. A key written into the file itself reads "embedded".
apt_entries() {
  local file
  for file in "$@"; do
    [[ -f "$file" ]] || continue
    case "$file" in
      *.list) apt_entries_one_line "$file" ;;
      *.sources) apt_entries_deb822 "$file" ;;
    esac
  done
}

apt_entries_one_line() {
  awk '
    { sub(/#.*/, "") }
    $1 != "deb" { next }
    {
      signed = "-"; trusted = "-"; line = $0
      sub(/^[ \t]*deb[ \t]+/, "", line)
      if (match(line, /^\[[^]]*\]/)) {
        count = split(substr(line, 2, RLENGTH - 2), options, /[ \t]+/)
        for (i = 1; i <= count; i++) {
          if (options[i] ~ /^signed-by=/) { signed = options[i]; sub(/^signed-by=/, "", signed) }
          if (options[i] ~ /^trusted=/) { trusted = options[i]; sub(/^trusted=/, "", trusted) }
        }
        line = substr(line, RLENGTH + 1)
      }
      words = split(line, word, /[ \t]+/)
      first = (word[1] == "") ? 2 : 1
      components = ""
      for (i = first + 2; i <= words; i++) if (word[i] != "") components = components (components == "" ? "" : " ") word[i]
      if (word[first] != "" && word[first + 1] != "")
        printf "%s\t%s\t%s\t%s\t%s\n", word[first], word[first + 1], components == "" ? "-" : components, signed, trusted
    }' "$1"
}

apt_entries_deb822() {
  awk '
    function flush(   u, s, uris, suites, nu, ns) {
      if (types ~ /(^|[ \t])deb([ \t]|$)/ && tolower(enabled) !~ /^(no|false|0|off)$/) {
        nu = split(uri, uris, /[ \t]+/); ns = split(suite, suites, /[ \t]+/)
        for (u = 1; u <= nu; u++) for (s = 1; s <= ns; s++)
          if (uris[u] != "" && suites[s] != "")
            printf "%s\t%s\t%s\t%s\t%s\n", uris[u], suites[s], components == "" ? "-" : components, signed == "" ? "-" : signed, trusted == "" ? "-" : trusted
      }
      types = uri = suite = components = signed = trusted = enabled = field = ""
    }
    /^#/ { next }
    /^[ \t]*$/ { flush(); next }
    /^[ \t]/ {
      value = $0; sub(/^[ \t]+/, "", value); sub(/[ \t]+$/, "", value)
      if (field == "uris") uri = uri " " value
      else if (field == "suites") suite = suite " " value
      else if (field == "components") components = components " " value
      else if (field == "signed-by" && signed == "") signed = (value ~ /^(\.|-----BEGIN)/) ? "embedded" : value
      next
    }
    {
      at = index($0, ":"); if (at == 0) next
      field = tolower(substr($0, 1, at - 1)); value = substr($0, at + 1)
      sub(/^[ \t]+/, "", value); sub(/[ \t\r]+$/, "", value)
      if (field == "types") types = value
      else if (field == "uris") uri = value
      else if (field == "suites") suite = value
      else if (field == "components") components = value
      else if (field == "signed-by") signed = value
      else if (field == "trusted") trusted = value
      else if (field == "enabled") enabled = value
    }
    END { flush() }' "$1"
}

# apt_files [ROOT]: the files apt reads, in its order.
apt_files() {
  local etc="${1:-}/etc/apt"
  printf '%s\n' "$etc/sources.list"
  local file
  for file in "$etc"/sources.list.d/*.list "$etc"/sources.list.d/*.sources; do
    [[ -e "$file" ]] && printf '%s\n' "$file"
  done
  return 0
}

# machine_apt_entries [ROOT]: apt_entries of all of them.
machine_apt_entries() {
  local files=()
  mapfile -t files < <(apt_files "${1:-}")
  apt_entries "${files[@]}"
}

# backports_line CODENAME KEYRING < entries: the source to add for the backports suite, in one-line form, from the
# entry of the main archive. Prints nothing when the suite is configured already; returns 1 when there is no archive
# to go by. KEYRING is used where the machine's entry names none.
backports_line() {
  local codename="$1" keyring="$2" uri suite components signed trusted
  local found_uri='' found_signed='' found_trusted='' options=''
  while IFS=$'\t' read -r uri suite components signed trusted; do
    [[ "$suite" == "$codename-backports" && " $components " == *" main "* ]] && return 0
    [[ -n "$found_uri" || "$suite" != "$codename" || " $components " != *" main "* || "$uri" == cdrom:* ]] && continue
    found_uri="$uri" found_signed="$signed" found_trusted="$trusted"
  done
  [[ -n "$found_uri" ]] || return 1
  [[ "$found_signed" == - || "$found_signed" == embedded ]] && found_signed="$keyring"
  [[ -n "$found_signed" ]] && options="signed-by=$found_signed"
  [[ "$found_trusted" == yes ]] && options="${options:+$options }trusted=yes"
  printf 'deb %s%s %s-backports main\n' "${options:+[$options] }" "$found_uri" "$codename"
}

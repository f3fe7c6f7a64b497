# shellcheck shell=bash
# Reads what programs say of their versions. Sourced.
# shellcheck disable=SC2034 # used by whoever sources this

# The oldest runsc with the systrap platform and a checkpoint that can be restored, as its release date.
readonly MINIMUM_RUNSC=20240101
readonly MINIMUM_NODE=20

# runsc_date < "runsc --version": the release date, e.g. 20240729. Nothing when it carries none (built from source).
runsc_date() { sed -n 's/^runsc version .*\(20[0-9]\{6\}\).*/\1/p' | head -n 1; }

# go_minor < "go version": 23 for go1.23.5. Go 2 will be another matter.
go_minor() { sed -n 's/^go version go1\.\([0-9][0-9]*\).*/\1/p' | head -n 1; }

# go_minor_needed < go.mod
go_minor_needed() { sed -n 's/^go 1\.\([0-9][0-9]*\).*/\1/p' | head -n 1; }

# node_major < "node --version": 20 for v20.20.2.
node_major() { sed -n 's/^v\([0-9][0-9]*\)\..*/\1/p' | head -n 1; }

#!/bin/sh
# Asked by invoke-rc.d before a package starts its service: 101 = not allowed. Nothing in a sandbox
# starts because it was installed; `service NAME start` still works when the user asks for it.
exit 101

"""Started by the guest agent, isolated from the user's packages: python3 -I /usr/local/lib/torpor/code-server."""

from torpor_notebook.serve import main

main()

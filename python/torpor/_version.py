"""Version of this client, as in pyproject.toml. Sent in `user-agent`."""

VERSION = "0.1.0"

"""What runs inside a kernel process. Nothing of it is visible to the user's code."""

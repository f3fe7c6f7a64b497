"""The code server: E2B's code-interpreter protocol on port 49999, over Jupyter kernels."""

import time

from torpor import Sandbox

script = "import sys; print('Hello from Python', sys.version.split()[0])\n"

started_at = time.perf_counter()
with Sandbox.create(template="code-interpreter", ttl_seconds=300) as sbx:
    created_at = time.perf_counter()
    sbx.filesystem.write("/workspace/task.py", script)
    written_at = time.perf_counter()
    result = sbx.exec("python3 /workspace/task.py", timeout_seconds=60, check=True)
    done_at = time.perf_counter()
# The sandbox is gone here, also when something above raises.

print(result.stdout.rstrip())
print(f"create {(created_at - started_at) * 1000:.1f} ms")
print(f"write  {(written_at - created_at) * 1000:.1f} ms")
print(f"exec   {(done_at - written_at) * 1000:.1f} ms")

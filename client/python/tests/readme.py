"""Runs the first example in Python of README.md as a program, and compares what it prints with what README.md says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[3] / "README.md"


def check() -> None:
    code = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert code, "README.md has no example in Python"
    said = re.search(r"# prints (.*)\n", code[1])
    assert said, "the example does not say what it prints"
    done = subprocess.run([sys.executable, "-c", code[1]], capture_output=True, text=True, timeout=120, cwd="/")
    assert done.returncode == 0, done.stderr
    print(done.stdout, end="")
    assert done.stdout.strip() == said[1]


if __name__ == "__main__":
    check()

"""joblib's tests of Parallel, with the backend "remotely" in place of its process backends.

What is adapted: the list of process backends.
"""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import remotely

NAME = "joblib.test.test_parallel"

remotely.connect(cpus=8)
remotely.register_joblib()


def adapted() -> ModuleType:
    """Return the module of tests with another list of backends, on which its decorators depend."""
    spec = importlib.util.find_spec(NAME)
    assert spec is not None
    assert spec.origin is not None
    text = Path(spec.origin).read_text(encoding="utf-8")
    text, count = re.subn(
        r"(?m)^( *)PROCESS_BACKENDS = .*", r'\1PROCESS_BACKENDS = ["remotely"]', text
    )
    assert count, "it has another list of backends now"
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module  # its functions are sent by name
    exec(compile(text, spec.origin, "exec"), vars(module))  # noqa: S102 - the file of a package
    return module


globals().update({k: v for k, v in vars(adapted()).items() if not k.startswith("__")})

"""joblib's tests of Parallel, with the backend "remotely" in place of its process backends.

What is adapted: the list of process backends, and scripts register the backend.
"""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import joblib.testing

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


REGISTER = "import remotely; remotely.register_joblib()\n"


def check_subprocess_call(command: list[str], **how: Any) -> Any:
    *start, last = command
    if start[-1] == "-c":
        last = REGISTER + last
    else:
        Path(last).write_text(REGISTER + Path(last).read_text(encoding="utf-8"), encoding="utf-8")
    return joblib.testing.check_subprocess_call([*start, last], **{**how, "timeout": 60})


module = adapted()
module.check_subprocess_call = check_subprocess_call
globals().update({k: v for k, v in vars(module).items() if not k.startswith("__")})

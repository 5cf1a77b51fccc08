# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""Optimizers whose state is larger than memory, over arrays of any framework.

`TensorOptimizer` updates float32 and bfloat16 arrays where they lie. Its state lies in host memory up to the
bytes it is given, the rest in a folder on a drive; that changes no bit of the result. For PyTorch there is
`spillway.torch` with torch's own optimizer classes; this module is for everything else that speaks DLPack
or the buffer protocol, and for whoever writes an adapter.

>>> import numpy, spillway
>>> weights = numpy.ones((1000, 100), numpy.float32)
>>> optimizer = spillway.TensorOptimizer(
...     [("weights", weights, 0)], "adam", [{"learning_rate": 0.1, "weight_decay": 0.0}],
...     host_bytes=spillway.parse_bytes("64MiB"))
>>> for step in range(100):
...     gradient = 2 * (weights - 3)           # of the sum of (weights - 3) ** 2
...     optimizer.give_gradient(0, gradient)
...     report = optimizer.begin_step(max_norm=1e6)
...     optimizer.wait()                       # now `weights` holds the new values
>>> bool(abs(weights - 3).max() < 0.1)
True

- **NumPy** arrays pass as they are. NumPy has no bfloat16 that DLPack knows.
- **torch** tensors pass as they are (CPU, contiguous); `spillway.torch` does more with less.
- **JAX** arrays never change, so keep the parameters in NumPy arrays (`numpy.array(x)` copies) and hand them to a
  jitted function each step; gradients pass as they are, bfloat16 too.
- **CuPy** and other device arrays: copy gradients to the CPU first (`cupy.asnumpy`). This version has no CUDA device.

With `out=` a folder, `commit()` makes parameters, state and counters durable together, and `recover()` loads the
newest commit; with other `nvme=` folders than last time the state moves there first. Errors: `Refused` for a plan or
folder that cannot be, `IntegrityError` and OSError when the drive fails, `NonfiniteGradient` where asked for, ValueError
and TypeError for arguments.
"""
import re as _re

try:
    from spillway import _core
except ImportError as _error:
    _DEBIAN_PACKAGES = {"libtbb": "libtbb12", "liburing": "liburing2", "libxxhash": "libxxhash0", "libfmt": "libfmt9",
                        "libhwy": "libhwy1"}
    _missing = _re.match(r"(lib[a-z]+)\S*: cannot open shared object file", str(_error))
    if _missing is None or _missing[1] not in _DEBIAN_PACKAGES:
        raise
    raise ImportError(f"{_error}: the system library is not installed "
                      f"(Debian: apt-get install {_DEBIAN_PACKAGES[_missing[1]]})") from None

from spillway._core import (IntegrityError, NonfiniteGradient, Refused, StepReport, TensorOptimizer, __version__,
                            available_host_bytes, io_backends, isas, parse_bytes)
from spillway.deepspeed_config import from_deepspeed_config

__all__ = ["IntegrityError", "NonfiniteGradient", "Refused", "StepReport", "TensorOptimizer", "__version__",
           "available_host_bytes", "from_deepspeed_config", "io_backends", "isas", "parse_bytes"]

# Users meet these names here, in tracebacks and in what pickle writes too.
for _public in (IntegrityError, NonfiniteGradient, Refused, StepReport, TensorOptimizer):
    _public.__module__ = "spillway"

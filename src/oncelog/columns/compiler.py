"""Compile a kernel's Python to object code. Only this module and the kernels import numba."""

# numba's type annotations accept less than its functions do:
# mypy: disable-error-code="no-untyped-call, call-overload, attr-defined"

from __future__ import annotations

import re
from typing import Any

import numba
from llvmlite import binding
from numba import types

from oncelog.columns import json_kernel, kernels
from oncelog.columns.avro import read_kernel, write_kernel
from oncelog.columns.signatures import ARRAYS

PLACES = {
    "avro_read": read_kernel,
    "avro_write": write_kernel,
    **dict.fromkeys(("base64_decode", "base64_encode", "json_shaped"), json_kernel),
}
"""The modules of kernels that are not in `kernels`."""
FROM_C = frozenset({"memcpy", "memmove", "memset"})
_COUNTED = re.compile(r"^ *(?:tail )?call void @NRT_(?:in|de)cref\(.*\n", re.MULTILINE)
"""numba's counts of references to arrays. Kernels own no array, so these calls would only take time: half of it."""


def compiled(name: str, signature: str, machine: Any) -> tuple[str, bytes]:
    """Compile a kernel with the calling convention of C. Return its entry's name and the object code for `machine`."""
    function = getattr(PLACES.get(name, kernels), name)
    parameters, arguments, kinds = [], [], []
    for index, letter in enumerate(signature):
        parameters.append(f"a{index}")
        kinds.append(types.int64)
        if letter in ARRAYS:
            kinds[-1] = types.CPointer(numba.from_dtype(ARRAYS[letter]))
            parameters.append(f"n{index}")
            kinds.append(types.int64)
            arguments.append(f"carray(a{index}, (n{index},))")
        else:
            arguments.append(f"a{index} != 0" if letter == "?" else f"a{index}")
    space: dict[str, Any] = {"function": function, "carray": numba.carray}
    exec(f"def entry({', '.join(parameters)}):\n    return function({', '.join(arguments)})", space)
    made = numba.cfunc(types.int64(*kinds), error_model="numpy")(space["entry"])
    module = binding.parse_assembly(_COUNTED.sub("", made.inspect_llvm()))
    module.link_in(binding.parse_assembly(_stubs(module)))
    builder = binding.create_pass_builder(machine, binding.create_pipeline_tuning_options(speed_level=3))
    builder.getModulePassManager().run(module, builder)  # without the counts, more functions can be inlined
    return made.native_name, machine.emit_object(module)


def _stubs(module: Any) -> str:
    """Return stubs for symbols that only numba and Python define. They serve exceptions, which no kernel raises."""
    missing = [one.name for one in module.functions if one.is_declaration and not one.name.startswith("llvm.")]
    functions = [
        f'define void @"{name}"() {{ call void @llvm.trap() unreachable }}' for name in missing if name not in FROM_C
    ]
    variables = [f'@"{one.name}" = global i8 0' for one in module.global_variables if one.is_declaration]
    return "\n".join(["declare void @llvm.trap()", *functions, *variables])

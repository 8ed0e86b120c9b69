"""Compilation of functions that are inlined into the kernels that call them.

By default numba also optimises each such function and generates machine code of it, which is never run.
"""

from typing import Any

from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.environment import lookup_environment


class InlinedLibrary(JITCodeLibrary):
    """Code library that is only ever linked into the libraries of its callers."""

    @property
    def codegen(self) -> Any:
        """Return self: numba registers the address of the environment with the library; inlined code has none."""
        return self

    def set_env(self, name: str, environment: Any) -> None:
        """Do nothing: the callers set the environments, see `set_environments`."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


class InlinedCompiler(Compiler):
    """Compiler that stops at the form of a function that its callers link."""

    def _compile_bytecode(self) -> Any:
        state = self.state
        state.library = InlinedLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        return super()._compile_bytecode()


def set_environments(library: Any) -> list[Any]:
    """Register the environments of inlined functions with the compiled code; numba needs them to raise errors."""
    names = [var.name for var in library._final_module.global_variables if var.name.startswith("_ZN08NumbaEnv")]
    environments = {name: environment for name in names if (environment := lookup_environment(name)) is not None}
    for name, environment in environments.items():
        library.codegen.set_env(name, environment)
    return list(environments.values())

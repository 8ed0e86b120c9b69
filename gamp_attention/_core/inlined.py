"""Functions that become part of the kernels that call them, and are not compiled by themselves.

By itself numba also optimises each of them and makes machine code of it, which nobody runs.
"""

from typing import Any

from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.environment import lookup_environment


class InlinedLibrary(JITCodeLibrary):
    """Code that is only ever linked into that of its callers."""

    @property
    def codegen(self) -> Any:
        """What else would be told the address of the environment, which has none here."""
        return self

    def set_env(self, name: str, environment: Any) -> None:
        """Left to the callers, see `set_environments`."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


class InlinedCompiler(Compiler):
    """Compiles functions as far as their callers need it."""

    def _compile_bytecode(self) -> Any:
        state = self.state
        state.library = InlinedLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        return super()._compile_bytecode()


def set_environments(library: Any) -> list[Any]:
    """Tell finished code where the environments of functions inlined into it are; numba needs them to raise errors."""
    names = [each.name for each in library._final_module.global_variables if each.name.startswith("_ZN08NumbaEnv")]
    found = {name: environment for name in names if (environment := lookup_environment(name)) is not None}
    for name, environment in found.items():
        library.codegen.set_env(name, environment)
    return list(found.values())

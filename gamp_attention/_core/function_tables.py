"""Compilation of functions that are inlined into the kernels that call them.

By default numba also optimises each such function and generates machine code of it, which is never run.

Values and compiled functions at memory addresses that are known only at run time.

Kernels that call functions through addresses need not be compiled again for every function that they may call.

Kernels that call each other through addresses.

By itself numba copies all that a function calls into it and optimises the whole: what is at the bottom of a tower of
functions is optimised again for each function above. A `Kernel` is compiled once. Where another one calls it, there is
only its symbol, whose address has to be known before the caller runs. It is: the caller is compiled after it, and on
the disk the caller has a `Callee` that is called before it is loaded.
"""

import gc
from importlib import import_module
from typing import Any, NamedTuple
from uuid import uuid4

from llvmlite import binding, ir
from numba.core import types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.environment import lookup_environment
from numba.core.funcdesc import ExternalFunctionDescriptor
from numba.core.registry import CPUDispatcher, cpu_target
from numba.extending import intrinsic

from gamp_attention._core.hashes import hash_bytes
from gamp_attention._core.interrupts import interruptible_compilation
from gamp_attention._core.kernel_cache import KernelCache, key_of_types


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


WORD = ir.IntType(64)


def _behind(typing_context: Any, given: Any) -> Any:
    """Return the value that a pointer points to; any other argument is returned as it is."""
    if not isinstance(given, types.CPointer):
        return given(given), lambda context, builder, signature, arguments: arguments[0]

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return context.unpack_value(builder, signature.return_type, arguments[0])

    return given.dtype(given), generate


def _put(typing_context: Any, value: Any, address: Any) -> Any:
    """Store a value at an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = signature.args[0]
        pointer = builder.inttoptr(arguments[1], context.get_data_type(kind).as_pointer())
        context.pack_value(builder, kind, arguments[0], pointer)
        return context.get_dummy_value()

    return types.void(value, types.int64), generate


behind: Any = intrinsic(_behind)
put: Any = intrinsic(_put)


def caller(place: int, first: int, kinds: tuple[Any, ...], returns: Any) -> Any:
    """Return an intrinsic that calls the function stored at index `place` of a table.

    The call is call(table, others): the table is an address, the others a tuple of values of numba types `kinds`. The
    function gets a pointer to index `first` of the table, and the others.
    """

    def _call(typing_context: Any, table: Any, others: Any) -> Any:
        given = tuple(map(types.unliteral, others))
        if tuple(map(_layout, given)) != tuple(map(_layout, kinds)):
            return None

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            convention, words = context.call_conv, builder.inttoptr(arguments[0], WORD.as_pointer())
            called = types.voidptr, *kinds
            shape = convention.get_function_type(returns, called).as_pointer()
            address = builder.load(builder.gep(words, [WORD(place)]))
            data = builder.bitcast(builder.gep(words, [WORD(first)]), context.get_value_type(types.voidptr))
            values = [builder.extract_value(arguments[1], i) for i in range(len(kinds))]
            status, result = convention.call_function(
                builder, builder.inttoptr(address, shape), returns, called, [data, *values]
            )
            with builder.if_then(status.is_error, likely=False):
                convention.return_status_propagate(builder, status)
            return result

        return returns(types.int64, types.Tuple(others)), generate

    return intrinsic(_call)


def _layout(kind: Any) -> Any:
    """Return a type without the flag `readonly` of arrays, which does not affect how they are passed."""
    return kind.copy(readonly=False) if isinstance(kind, types.Array) else kind


def byte_size(kind: Any) -> int:
    """Return the number of bytes that `put` writes for a value of a numba type."""
    context = cpu_target.target_context
    return int(context.get_abi_sizeof(context.get_data_type(kind)))


_LOADED: list[Any] = []  # all compiled code stays, as others may hold its address


class Callee(NamedTuple):
    """A kernel, for some types of arguments, that another one calls."""

    module: str
    name: str
    args: tuple[Any, ...]
    symbol: str

    def __call__(self) -> None:
        """Load or compile it, if that has not been done."""
        if self.symbol in _CALLEES:
            return
        kernel: Any = import_module(self.module)
        for part in self.name.split("."):
            kernel = getattr(kernel, part)
        getattr(kernel, "kernel", kernel).compile(self.args)
        if self.symbol not in _CALLEES:
            raise LookupError(f"{self.name} is not what it was when its caller was compiled")


_CALLEES: dict[str, Callee] = {}  # what is loaded, by symbol


class Kernel(CPUDispatcher):
    """A compiled function that kernels call through its address, and Python, but for inner ones."""

    @property
    def inner(self) -> bool:
        """Whether there is no code that takes the arguments from Python."""
        return bool(self.targetoptions.get("no_cpython_wrapper"))

    def enable_caching(self) -> None:
        """Keep what is compiled on the disk."""
        self._cache = KernelCache(self.py_func)

    def compile(self, sig: Any) -> Any:
        """Compile for types of arguments, or load; collections of garbage wait, as they took a seventh of the time."""
        collects = gc.isenabled()
        gc.disable()
        try:
            with interruptible_compilation():
                return super().compile(sig)
        finally:
            if collects:
                gc.enable()

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """The signature of a call by a kernel; a number written out there is like any other."""
        plain = {name: types.unliteral(each) for name, each in kws.items()}
        return super().get_call_template(tuple(map(types.unliteral, args)), plain)

    def add_overload(self, compiled: Any) -> None:
        """Let what was just compiled or loaded be called by Python, and by kernels through its address."""
        function, args = compiled.fndesc, compiled.signature.args
        if self.inner:
            self.overloads[args] = compiled
        else:
            super().add_overload(compiled)
        declared = [each.name for each in compiled.library._final_module.functions if each.is_declaration]
        compiled.reload_init.extend(_CALLEES[name] for name in declared if name in _CALLEES)  # numba calls these
        symbol = self._symbol(compiled.signature)
        binding.add_symbol(symbol, compiled.library.get_pointer_to_function(function.llvm_func_name))
        _CALLEES[symbol] = Callee(self.py_func.__module__, self.py_func.__qualname__, args, symbol)
        _LOADED.append((compiled, set_environments(compiled.library)))
        outside = ExternalFunctionDescriptor(symbol, function.restype, function.argtypes)
        self.targetctx.remove_user_function(compiled.entry_point)  # which would copy the code
        self.targetctx.insert_user_function(compiled.entry_point, outside)

    def address(self, args: tuple[Any, ...]) -> tuple[int, Any]:
        """Where the code for some types of arguments is, compiled if need be, and the type that it returns."""
        self.compile(args)
        compiled: Any = self.overloads[args]
        return compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name), compiled.signature.return_type

    def _compile_for_args(self, *args: Any, **kws: Any) -> Any:
        if self.inner:
            raise TypeError(f"{self.py_func.__qualname__}: is called by kernels only, got arguments from Python")
        return super()._compile_for_args(*args, **kws)  # type: ignore[misc]

    def _symbol(self, signature: Any) -> str:
        """A name of the code for some types, the same in every process that can load it from the disk."""
        name, known = self.py_func.__qualname__, key_of_types((*signature.args, signature.return_type))
        if known is None or "<locals>" in name:
            return f"{name}.{uuid4().hex}"
        return f"{name}.{hash_bytes(repr((self.py_func.__module__, known)).encode())}"

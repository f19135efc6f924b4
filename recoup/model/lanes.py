"""Sixteen float32 at a time in numba kernels: what the compiler's own loops do not keep in registers.

A `lanes` value is one vector register. LLVM maps it to what the machine has (one AVX-512 register, two of AVX, four of
SSE or Neon), so the same source runs everywhere; arrays need no alignment. Indices count float32 from the start of a
C-contiguous array, and are not checked.
"""
# ruff: noqa: ANN401 -- numba hands over types that it does not name

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.extending import intrinsic, register_model

WIDTH = 16
"""float32 in a `lanes` value."""


class LanesType(types.Type):
    """The type of a `lanes` value."""

    def __init__(self) -> None:
        super().__init__(name="lanes16")


_LANES = LanesType()
_VECTOR = ir.VectorType(ir.FloatType(), WIDTH)


@register_model(LanesType)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, _VECTOR)


def _instruction(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return numba's intrinsic of `function`, called without its first argument."""
    made: Any = intrinsic(function)
    return made


@_instruction
def zero(typingctx: Any) -> Any:
    """Return 16 zeros."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return ir.Constant(_VECTOR, [0.0] * WIDTH)

    return _LANES(), generate


@_instruction
def load(typingctx: Any, array: Any, index: Any) -> Any:
    """Return `array.flat[index : index + 16]`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(_pointer(context, builder, signature, args, _VECTOR), align=4)

    return _LANES(array, types.intp), generate


@_instruction
def store(typingctx: Any, array: Any, index: Any, lanes: Any) -> Any:
    """Set `array.flat[index : index + 16]`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[2], _pointer(context, builder, signature, args, _VECTOR), align=4)
        return context.get_dummy_value()

    return types.void(array, types.intp, _LANES), generate


@_instruction
def add(typingctx: Any, first: Any, second: Any) -> Any:
    """Return `first + second`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fadd(args[0], args[1])

    return _LANES(_LANES, _LANES), generate


@_instruction
def add_product(typingctx: Any, total: Any, factor: Any, lanes: Any) -> Any:
    """Return `total + factor * lanes`, in one instruction where there is one; `factor` is one float32."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _fused(builder, _spread(builder, args[1]), args[2], args[0])

    return _LANES(_LANES, types.float32, _LANES), generate


@_instruction
def add_products(typingctx: Any, total: Any, first: Any, second: Any) -> Any:
    """Return `total + first * second`, lane by lane, in one instruction where there is one."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _fused(builder, args[1], args[2], args[0])

    return _LANES(_LANES, _LANES, _LANES), generate


@_instruction
def store_sums(typingctx: Any, array: Any, index: Any, first: Any, second: Any, third: Any, fourth: Any) -> Any:  # noqa: PLR0913
    """Set `array.flat[index : index + 4]` to the sums of the 16 lanes of each of four values, added by halves."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        def halves(left: Any, right: Any, run: int) -> Any:
            """Add neighbouring runs of `run` lanes of left, then right: half as many values of each are left."""
            low = [n for n in range(2 * WIDTH) if n // run % 2 == 0]
            high = [n for n in range(2 * WIDTH) if n // run % 2 == 1]
            parts = (builder.shuffle_vector(left, right, _indices(lanes)) for lanes in (low, high))
            return builder.fadd(*parts)

        four = halves(halves(args[2], args[3], 8), halves(args[4], args[5], 8), 4)
        for distance in (2, 1):
            four = builder.fadd(four, builder.shuffle_vector(four, four, _indices(n ^ distance for n in range(WIDTH))))
        sums = builder.shuffle_vector(four, four, _indices((0, 4, 8, 12)))
        builder.store(sums, _pointer(context, builder, signature, args, sums.type), align=4)
        return context.get_dummy_value()

    return types.void(array, types.intp, _LANES, _LANES, _LANES, _LANES), generate


@_instruction
def sum_lanes(typingctx: Any, lanes: Any) -> Any:
    """Return the sum of the 16, by halves."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        total, width = args[0], WIDTH
        while width > 1:
            width //= 2
            low, high = (_part(builder, total, first, width) for first in (0, width))
            total = builder.fadd(low, high)
        return builder.extract_element(total, ir.Constant(ir.IntType(32), 0))

    return types.float32(_LANES), generate


@_instruction
def prefetch(typingctx: Any, array: Any, index: Any) -> Any:
    """Ask for the cache line of `array.flat[index]`; the address may lie anywhere, nothing is read."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _pointer(context, builder, signature, args, ir.IntType(8))
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, *[ir.IntType(32)] * 3])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        read, keep, data = (ir.Constant(ir.IntType(32), value) for value in (0, 3, 1))
        builder.call(function, [pointer, read, keep, data])
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


def _pointer(context: Any, builder: Any, signature: Any, args: Any, target: ir.Type) -> Any:
    array = context.make_array(signature.args[0])(context, builder, args[0])
    return builder.bitcast(builder.gep(array.data, [args[1]]), target.as_pointer())


def _fused(builder: Any, first: Any, second: Any, total: Any) -> Any:
    product = builder.fmul(first, second, flags=("contract",))
    return builder.fadd(product, total, flags=("contract",))


def _spread(builder: Any, value: Any) -> Any:
    first = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(first, ir.Constant(_VECTOR, ir.Undefined), _indices([0] * WIDTH))


def _part(builder: Any, lanes: Any, first: int, width: int) -> Any:
    undefined = ir.Constant(lanes.type, ir.Undefined)
    return builder.shuffle_vector(lanes, undefined, _indices(range(first, first + width)))


def _indices(values: Any) -> Any:
    numbers = list(values)
    return ir.Constant(ir.VectorType(ir.IntType(32), len(numbers)), numbers)

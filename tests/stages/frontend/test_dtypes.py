"""A tensor's dtype that does not exist: tilelang takes some, and fails when it makes code."""

from typing import Any

import pytest
import tilelang.language as T

from atune.stages.frontend.frontend import elaborate


def kernel(dtype: str, block: int = 4) -> Any:
    @T.prim_func
    def main(A: T.Tensor((16,), "float32"), B: T.Tensor((16,), dtype)) -> None:
        with T.Kernel(4, threads=1) as i:
            for j in T.serial(block):
                A[i * block + j] = T.float32(0)

    return main


@pytest.mark.parametrize(
    ("dtype", "meant"), [("float33", "; did you mean 'float32'?"), ("int9", ""), ("bfloat17", "; did you mean 'bfl")]
)
def test_a_dtype_that_does_not_exist_is_named(dtype: str, meant: str) -> None:
    with pytest.raises(TypeError, match=f"tensor B has the dtype '{dtype}', which does not exist") as caught:
        elaborate(kernel, {"dtype": dtype}, {})
    assert meant in str(caught.value)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool", "uint8", "int4", "uint4", "float8_e4m3fn", "int32x4"])
def test_others_are_taken(dtype: str) -> None:
    assert str(elaborate(kernel, {"dtype": dtype}, {}).params[1].name).startswith("B")


def test_a_size_beyond_32_bits_is_a_number() -> None:
    import tilelang.language as T

    from atune.stages.frontend.frontend import kernel_parameters

    n = 2**37

    @T.prim_func
    def main(a: T.Tensor((n, 4), "float32")):
        with T.Kernel(1):
            a[0, 0] = 1.0

    assert kernel_parameters(main)[0].shape == (n, 4)

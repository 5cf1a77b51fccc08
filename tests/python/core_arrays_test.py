# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""Which arrays the native module takes, what it says of others, and how long it keeps them."""
import ctypes
import gc
import unittest
import weakref

from core_support import Case, make, needs_torch, numpy, step, torch, values


class CudaArray:
    """What a CUDA array looks like through DLPack: a capsule whose device is (2, 3)."""

    class Tensor(ctypes.Structure):
        _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                    ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                    ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
                    ("byte_offset", ctypes.c_uint64), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]

    def __init__(self):
        self.extents = (ctypes.c_int64 * 2)(4, 1)
        address = ctypes.addressof(self.extents)
        self.tensor = self.Tensor(None, 2, 3, 1, 2, 32, 1, address, address + 8)

    def __dlpack__(self, **_):
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.tensor), b"dltensor", None)

    def __dlpack_device__(self):
        return 2, 3


class Watched(numpy.ndarray):
    """An array whose end can be seen."""


def watched(array):
    result = array.view(Watched)
    return result, weakref.ref(result)


class Arrays(Case):
    def test_parameters_that_are_refused(self):
        floats = numpy.zeros((4, 6), numpy.float32)
        frozen = floats.copy()
        frozen.flags.writeable = False
        for array, kind, words in (
            (numpy.zeros(3), ValueError, ["parameter '0'", "float64", "float32 or bfloat16"]),
            (numpy.zeros(3, numpy.float16), ValueError, ["float16", "float32 or bfloat16"]),
            (numpy.zeros(3, numpy.int32), ValueError, ["int32"]),
            (floats.T, ValueError, ["(6, 4)", "(1, 6)", "C-contiguous", "ascontiguousarray"]),
            (floats[:, :3], ValueError, ["(4, 3)", "(6, 1)"]),
            (floats[::-1], ValueError, ["(4, 6)", "(-6, 1)"]),
            (frozen, ValueError, ["read-only", "writable copy"]),
            (CudaArray(), ValueError, ["CUDA device 3", "no CUDA device", ".cpu()"]),
            ([1.0, 2.0], TypeError, ["parameter '0'", "list", "DLPack"]),
            (None, TypeError, ["NoneType"]),
        ):
            self.assert_says(kind, words, make, [array])

    def test_jax_arrays_are_only_read(self):
        class Array:
            """Immutable by its word alone."""
            __module__ = "jaxlib._jax"

            def __init__(self, memory):
                self.memory = memory

            def __dlpack__(self, **options):
                return self.memory.__dlpack__(**options)

            def __dlpack_device__(self):
                return 1, 0

        self.assert_says(ValueError, ["Array is read-only", "numpy.array"], make, [Array(values(1, 3))])
        optimizer = make([values(1, 3)])
        step(optimizer, [Array(values(2, 3))])
        self.assert_says(ValueError, ["out", "read-only"], optimizer.read_state, 0, 0, 0, Array(values(2, 3)))

    def test_layouts_that_are_no_gap(self):
        for array in (numpy.zeros((5, 1), numpy.float32)[:, ::-1], numpy.zeros((1, 8), numpy.float32, order="F"),
                      numpy.zeros((0, 7), numpy.float32).T, numpy.zeros((3, 4), numpy.float32)[1:],
                      memoryview(bytearray(12)).cast("f")):
            make([array, values(1, 3)])

    def test_gradients_that_are_refused(self):
        optimizer = make([numpy.zeros((4, 6), numpy.float32)])
        for array, kind, words in (
            (numpy.zeros(24), ValueError, ["the gradient of '0'", "float64", "float32 or bfloat16 or float16"]),
            (numpy.zeros(23, numpy.float32), ValueError, ["23 elements", "24"]),
            (numpy.zeros((6, 4), numpy.float32).T, ValueError, ["C-contiguous"]),
            (CudaArray(), ValueError, ["CUDA device 3"]),
            ("gradient", TypeError, ["str"]),
        ):
            self.assert_says(kind, words, optimizer.give_gradient, 0, array)
            self.assert_says(kind, words, optimizer.give_gradients, [0], [array])
        good = numpy.zeros((4, 6), numpy.float32)
        self.assert_says(ValueError, ["tensor 1", "1, from 0"], optimizer.give_gradient, 1, good)
        self.assert_says(ValueError, ["2 tensors", "1 arrays"], optimizer.give_gradients, [0, 0], [good])
        good.flags.writeable = False
        step(optimizer, [good])  # gradients are only read, and none of the refused was taken

    def test_all_are_checked_before_one_is_given(self):
        optimizer = make([values(1, 3), values(2, 3)])
        self.assertRaises(ValueError, optimizer.give_gradients, [0, 1], [values(1, 3), values(1, 4)])
        step(optimizer, [values(1, 3), values(1, 3)])

    @needs_torch
    def test_torch_that_is_refused(self):
        self.assert_says(ValueError, ["float64"], make, [torch.zeros(3, dtype=torch.float64)])
        self.assert_says(ValueError, ["(6, 4)", ".contiguous()"], make, [torch.zeros(4, 6).T])
        self.assertRaises((TypeError, ValueError), make, [torch.zeros(3, device="meta")])

    def test_gradients_live_until_their_step_is_over(self):
        optimizer = make([values(1, 1000), values(2, 1000)])
        first, first_end = watched(values(3, 1000))
        second, second_end = watched(values(4, 1000))
        optimizer.give_gradients([0, 1], [first, second])
        del first, second
        gc.collect()
        self.assertIsNotNone(first_end())
        optimizer.begin_step()
        self.assertIsNotNone(second_end())
        optimizer.wait_for(0)
        self.assertIsNone(first_end())
        optimizer.wait()
        self.assertIsNone(second_end())
        third, third_end = watched(values(5, 1000))
        optimizer.give_gradient(0, third)
        del third
        optimizer.discard_gradients()
        self.assertIsNone(third_end())
        fourth, fourth_end = watched(values(5, 1000))
        optimizer.begin_streamed_step()
        optimizer.give_gradient(0, fourth)
        del fourth
        self.assertIsNotNone(fourth_end())
        optimizer.end_gradients()
        optimizer.wait()
        self.assertIsNone(fourth_end())

    def test_parameters_live_as_long_as_the_optimizer(self):
        parameter, end = watched(values(1, 100))
        optimizer = make([parameter])
        del parameter
        step(optimizer, [values(2, 100)])
        self.assertIsNotNone(end())
        optimizer.rebind(0, values(1, 100))
        self.assertIsNone(end())
        moved, moved_end = watched(values(1, 100))
        optimizer.rebind(0, moved)
        del moved, optimizer
        self.assertIsNone(moved_end())

    def test_deletion_in_every_order_in_mid_update(self):
        for _ in range(20):
            weights, gradient = values(1, 300_000), values(2, 300_000)
            optimizer = make([weights])
            optimizer.give_gradient(0, gradient)
            del gradient
            optimizer.begin_step()
            del optimizer
            after = weights.copy()
            del weights
        self.assertTrue(numpy.isfinite(after).all())

    def test_rebind(self):
        weights = values(1, 50)
        optimizer = make([weights])
        step(optimizer, [values(2, 50)])
        moved, before = weights.copy(), weights.copy()
        optimizer.rebind(0, moved)
        step(optimizer, [values(3, 50)])
        self.assert_bits(weights, before)
        self.assertGreater(abs(moved - before).max(), 0)
        self.assert_says(ValueError, ["'0'", "50", "49"], optimizer.rebind, 0, values(1, 49))
        self.assert_says(ValueError, ["tensor 5"], optimizer.rebind, 5, moved)

    def test_state_view_shares_memory(self):
        optimizer = make([values(1, 20, 30)])
        view = optimizer.state_view(0, 0)
        self.assertEqual((view.shape, view.dtype), ((600,), numpy.float32))
        self.assertFalse(view.any())
        step(optimizer, [values(2, 20, 30)])
        self.assertTrue(view.all())
        view[7] = 5
        out = numpy.empty(3, numpy.float32)
        optimizer.read_state(0, 0, 6, out)
        self.assertEqual(out[1], 5)
        optimizer.write_state(0, 0, 8, numpy.array([9], numpy.float32))
        self.assertEqual(view[8], 9)
        end = weakref.ref(optimizer)
        del optimizer
        gc.collect()
        self.assertIsNotNone(end())  # the view keeps the memory
        self.assertEqual(view[7], 5)
        del view
        self.assertIsNone(end())
        self.assertIsNone(make([values(1, 0), values(1, 1)]).state_view(0, 0))

    def test_state_arrays_that_are_refused(self):
        optimizer = make([values(1, 10)])
        for call, words, arguments in (
            (optimizer.read_state, ["out", "float64"], (0, 0, 0, numpy.zeros(10))),
            (optimizer.read_state, ["out", "C-contiguous"], (0, 0, 0, numpy.zeros(20, numpy.float32)[::2])),
            (optimizer.read_state, [], (0, 0, 5, numpy.zeros(6, numpy.float32))),
            (optimizer.read_state, [], (0, 2, 0, numpy.zeros(6, numpy.float32))),
            (optimizer.write_state, ["values", "int16"], (0, 0, 0, numpy.zeros(10, numpy.int16))),
            (optimizer.read_masters, ["out", "int16"], (0, 0, numpy.zeros(10, numpy.int16))),
            (optimizer.write_residue, ["values", "float32"], (0, 0, numpy.zeros(10, numpy.float32))),
            (optimizer.steps, ["tensor 1"], (1,)),
        ):
            self.assert_says(ValueError, words, call, *arguments)


if __name__ == "__main__":
    unittest.main()

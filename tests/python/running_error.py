# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""Arrays of values in double, and how far a float computation of each may lie from it.

Running error analysis (Higham 2002, section 3.3), as tests/cpu_optim/bounded.h has it for one element: each operation
passes on the errors of its operands and adds one rounding of its own result. A fused operation rounds less often than
is counted here, so the bound holds for a library that fuses and for one that does not.
"""
import numpy


def rounding(value):
    """Half an ulp of a float, relative, and what a subnormal result may lose."""
    return 2.0 ** -24 * numpy.abs(value) + 2.0 ** -149


class Bounded:
    """A value in double and the bound of a float computation's error."""

    def __init__(self, value, error=0.0):
        self.value = numpy.asarray(value, dtype=numpy.float64)
        self.error = numpy.broadcast_to(numpy.asarray(error, dtype=numpy.float64), self.value.shape)

    def __neg__(self):
        return Bounded(-self.value, self.error)

    def __add__(self, other):
        value = self.value + other.value
        return Bounded(value, self.error + other.error + rounding(value))

    def __sub__(self, other):
        return self + -other

    def __mul__(self, other):
        value = self.value * other.value
        return Bounded(value, numpy.abs(self.value) * other.error + numpy.abs(other.value) * self.error
                       + self.error * other.error + rounding(value))

    def __truediv__(self, other):
        value = self.value / other.value
        least = numpy.abs(other.value) - other.error
        if numpy.any(least <= 0):
            raise ZeroDivisionError("a divisor whose bound reaches 0: nothing can be said of the quotient")
        return Bounded(value, (self.error + numpy.abs(value) * other.error) / least + rounding(value))

    def root(self):
        value = numpy.sqrt(self.value)
        least = numpy.sqrt(numpy.maximum(self.value - self.error, 0))
        near = self.error / (value + least + 2.0 ** -1000)
        error = numpy.where(self.value > self.error, near, numpy.sqrt(2 * self.error))
        return Bounded(value, error + rounding(value))

    def distance(self, found):
        """How far `found` lies outside the bound, as a multiple of it: 1 or less is right. The tenth on top is for
        products of errors, which mixed() leaves out, and for double's own roundings."""
        multiple = numpy.abs(numpy.asarray(found, dtype=numpy.float64) - self.value) / (1.1 * self.error)
        return numpy.where(numpy.isnan(multiple), numpy.inf, multiple)


def narrowed(value):
    """A coefficient, rounded to float once."""
    return Bounded(value, rounding(value))


def mixed(a, b, share):
    """(1 - share) a + share b, computed so or as a + share (b - a)."""
    value = (1 - share) * a.value + share * b.value
    pull = share * (b.value - a.value)
    products = rounding((1 - share) * a.value) + rounding(share * b.value)
    return Bounded(value, (1 - share) * a.error + share * b.error
                   + numpy.maximum(3 * rounding(pull), products) + rounding(value))

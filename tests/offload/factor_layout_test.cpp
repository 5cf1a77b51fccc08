// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/factor_layout.h"

#include <catch2/catch.hpp>

namespace spillway::offload {

TEST_CASE("factor layout: a value for each row and column of matrices, each element of vectors") {
    const ElementOrder order({{"matrix", {4, 6}},
                              {"vector", {9}},
                              {"kernels", {2, 3, 5, 7}},
                              {"empty", {0, 8}},
                              {"one", {}},
                              {"column", {11, 1}}});
    const FactorLayout layout(order);
    CHECK(layout.of(0).values() == 4 + 6);
    CHECK(layout.of(1).is_vector());
    CHECK((layout.of(1).values() == 9 && layout.of(1).first_value == 10));
    CHECK((layout.of(2).matrices == 6 && layout.of(2).rows == 5 && layout.of(2).columns == 7));
    CHECK((layout.of(2).row_values() == 30 && layout.of(2).column_values() == 42));
    CHECK((layout.of(2).first_factor == 10 && layout.of(2).first_matrix == 1));
    CHECK(layout.of(3).values() == 0);
    CHECK((layout.of(4).is_vector() && layout.of(4).values() == 1));
    CHECK((layout.of(5).rows == 11 && layout.of(5).columns == 1));
    CHECK(layout.values() == 10 + 9 + 72 + 1 + 12);
    CHECK((layout.factors() == 10 + 72 + 12 && layout.matrices() == 8));
    CHECK(factor_values(order, SecondMoments::factored) == layout.values());
    CHECK(factor_values(order, SecondMoments::planes) == 0);
}

}  // namespace spillway::offload
